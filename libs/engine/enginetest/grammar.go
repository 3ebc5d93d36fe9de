package enginetest

import (
	"bytes"
	"slices"
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// words is a language of which every sentence is long enough to be taken back into.
const words = `root ::= word word word word word word
word ::= [a-c] | [x-z]
`

func (s suite) grammarCases() []testCase {
	return []testCase{
		{"a_grammar_that_does_not_compile_changes_nothing", s.badGrammars},
		{"a_grammar_holds_to_its_end", s.grammarHolds},
		{"a_grammar_is_a_function_of_the_answer", s.grammarGoesOn},
		{"the_answer_starts_within_the_tokens", func(t *testing.T) {
			sh, code := s.load(t, engine.LayerRange{}), engine.Malformed
			if !sh.compiles() {
				code = engine.UnsupportedFeature
			}
			step := sh.step(sh.open(t, 1, 32), 0, sh.tokens(1, 4), engine.WantSample)
			step.Sampling.Grammar, step.Sampling.AnswerStart = &engine.Grammar{Text: words}, 5
			sh.refused(t, step, code, 0)
		}},
	}
}

// compiles says whether the engine takes grammars.
func (sh *shard) compiles() bool {
	return slices.ContainsFunc(sh.Capabilities().Features, func(f engine.Feature) bool {
		return f.Name == engine.FeatureGrammar && f.Status == engine.FeatureOn
	})
}

// badGrammars are refused before anything is evaluated, by an engine that takes none as well, if with another code.
func (s suite) badGrammars(t *testing.T) {
	sh, code := s.load(t, engine.LayerRange{}), engine.InvalidGrammar
	if !sh.compiles() {
		code = engine.UnsupportedFeature
	}
	session := sh.open(t, 1, 32)
	sh.one(t, sh.step(session, 0, sh.tokens(1, 3), engine.WantNone))
	rows := sh.Metrics().Rows
	for _, text := range []string{``, `root`, `start ::= "a"`, `root ::= other`, `root ::= root "a" | "b"`, `root ::= ("a"`} {
		grammar := engine.Grammar{Text: text}
		step := sh.step(session, 3, sh.tokens(2, 2), engine.WantSample)
		step.Sampling.Grammar, step.Sampling.AnswerStart = &grammar, 5
		sh.refused(t, step, code, 3)
		if err := sh.text.CheckGrammar(t.Context(), grammar); engine.CodeOf(err) != engine.UnsupportedFeature { // as over a wire
			wantCode(t, err, code)
		}
	}
	if got := sh.Metrics().Rows; got != rows {
		t.Errorf("%d rows were evaluated for refused steps", got-rows)
	}
	sh.one(t, sh.step(session, 3, sh.tokens(2, 2), engine.WantSample))
}

// speak samples words after a prompt, until the model ends, and returns tokens and bytes. It begins behind those of answer.
func (c chain) speak(t *testing.T, session engine.SessionID, prompt, answer []engine.TokenID) ([]engine.TokenID, []byte) {
	t.Helper()
	step := c[0].step(session, 0, slices.Concat(prompt, answer), engine.WantSample)
	step.Sampling.Temperature, step.Sampling.Seed = 4, 5
	step.Sampling.Grammar, step.Sampling.AnswerStart = &engine.Grammar{Text: words}, engine.Pos(len(prompt))
	var text []byte
	answer = slices.Clone(answer)
	for range 16 {
		sample := c.run(t, step).Sample
		answer = append(answer, sample.Token)
		if sample.EndOfGeneration {
			return answer, text
		}
		text = append(text, sample.Bytes...)
		step.Start += engine.Pos(len(step.Tokens))
		step.Tokens = answer[len(answer)-1:]
	}
	t.Fatalf("the answer %q does not end", text)
	return nil, nil
}

func (s suite) talker(t *testing.T, cuts ...uint32) chain {
	t.Helper()
	whole := s.load(t, engine.LayerRange{})
	if !whole.compiles() {
		t.Skipf("without %s: sampling.grammar is not ON", Grammars)
	}
	if len(cuts) == 0 {
		return chain{whole}
	}
	return s.loadChain(t, whole.info.NLayer, cuts...)
}

func (s suite) grammarHolds(t *testing.T) {
	c := s.talker(t)
	_, text := c.speak(t, c.open(t, 1, 32), c[0].tokens(1, 4), nil)
	if len(text) != 6 || len(bytes.Trim(text, "abcxyz")) != 0 {
		t.Errorf("the answer is %q; it must be six letters of a to c and x to z, and the end", text)
	}
}

// grammarGoesOn: what was sampled before decides, whoever sampled it and however it got into the cache.
func (s suite) grammarGoesOn(t *testing.T) {
	c := s.talker(t)
	prompt := c[0].tokens(1, 4)
	session := c.open(t, 1, 32)
	want, _ := c.speak(t, session, prompt, nil)
	if len(want) < 4 {
		t.Fatalf("the answer %v is too short", want)
	}
	for _, keep := range []int{2, 0, len(want) - 1, 1} {
		if _, err := c[0].Truncate(t.Context(), session, 0); err != nil {
			t.Fatal(err)
		}
		if got, _ := c.speak(t, session, prompt, want[:keep]); !slices.Equal(got, want) {
			t.Errorf("gone on with behind %d tokens, the answer is %v, want %v", keep, got, want)
		}
	}
	split := s.talker(t, s.cuts(c[0].info.NLayer)[0])
	if got, _ := split.speak(t, split.open(t, 1, 32), prompt, nil); !slices.Equal(got, want) {
		t.Errorf("two shards give %v, one gives %v", got, want)
	}
}
