package conformance

import (
	"regexp"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

const invalidGrammar = workerpb.ErrorCode_ERROR_CODE_INVALID_GRAMMAR

// grammar puts a grammar on a run, for an answer that starts at start.
func grammar(text string, start uint32) func(*workerpb.Generate) {
	return func(g *workerpb.Generate) {
		g.IgnoreEog = false
		g.Sampling = &workerpb.Sampling{
			Temperature: proto.Float32(2), Seed: proto.Uint64(3), AnswerStart: proto.Uint32(start), Grammar: &workerpb.Grammar{Text: text},
		}
	}
}

// sixDigits is a language in which no answer is short.
const sixDigits = `root ::= [0-9] [0-9] [0-9] [0-9] [0-9] [0-9]`

func grammarHolds(t *T) {
	d := t.openDriver()
	id := d.put(d.step(generate(16, t.ids(3, 2), grammar(sixDigits, 3))))
	r := d.done(id)
	if r.failed != nil {
		t.Fatalf("a run under a grammar failed: %v", r.failed.GetError())
	}
	var text []byte
	for _, token := range r.tokens[:max(len(r.tokens), 1)-1] {
		text = append(text, token.GetBytes()...)
	}
	if !regexp.MustCompile(`^[0-9]{6}$`).Match(text) || r.result.GetFinish() != workerpb.Finish_FINISH_END_OF_GENERATION {
		t.Errorf("the answer is %q and ends with %v; six digits and END_OF_GENERATION are due", text, r.result.GetFinish())
	}
	d.finish()
}

func grammarGoesOn(t *T) {
	prompt := t.ids(3, 2)
	d := t.openDriver()
	want := d.run(16, prompt, grammar(sixDigits, 3))
	d.finish()
	if len(want) < 3 {
		t.Fatalf("the answer %v is too short", want)
	}
	keep := len(want) / 2
	d = t.openDriver()
	got := d.run(16, slices.Concat(prompt, want[:keep]), grammar(sixDigits, 3))
	d.finish()
	if !slices.Equal(got, want[keep:]) {
		t.Errorf("%v came behind %v, and %v in the first run", got, want[:keep], want[keep:])
	}
}

// grammarFaults are grammars that no hop may evaluate anything for.
func grammarFaults() []stepFault {
	var faults []stepFault
	add := func(id, says string, code workerpb.ErrorCode, path string, change func(*workerpb.Generate)) {
		faults = append(faults, stepFault{id: "grammar." + id, clauses: []string{"GEN-11"}, code: code, path: path, make: someRun, says: says,
			skip: needs("sampling.grammar"), change: func(s *workerpb.Step) { change(s.GetGenerate()) }})
	}
	for id, text := range map[string]string{
		"empty": "", "no-root": `start ::= "a"`, "undefined": `root ::= other`, "open": `root ::= ("a"`, "left-recursion": `root ::= root "a" | "b"`,
		"hidden-left-recursion": "root ::= n root \"x\" | \"y\"\nn ::= m\nm ::= \"\"", "million": `root ::= "a"{1000000}`,
	} {
		add(id, "A grammar that is "+id+" is INVALID_GRAMMAR before anything is evaluated.", invalidGrammar, "step.generate.sampling.grammar", grammar(text, 6))
	}
	add("prefill", "A grammar that does not allow its prefill is INVALID_GRAMMAR.", invalidGrammar, "step.generate.sampling.grammar", func(g *workerpb.Generate) {
		grammar(sixDigits, 6)(g)
		g.Sampling.Grammar.Prefill = "x"
	})
	add("pattern", "A trigger pattern that is no regular expression is INVALID_GRAMMAR.", invalidGrammar, "step.generate.sampling.grammar", func(g *workerpb.Generate) {
		grammar(sixDigits, 6)(g)
		g.Sampling.Grammar.Lazy, g.Sampling.Grammar.TriggerPatterns = true, []string{"("}
	})
	add("start", "With a grammar, answer_start behind the step's tokens is MALFORMED.", malformed, "", grammar(sixDigits, 7))
	return faults
}
