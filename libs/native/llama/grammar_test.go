//go:build llama && cgo

package llama

import (
	"bytes"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

// grammatical is sampling under a grammar, from an answer that begins at start.
func grammatical(text string, start int) *engine.Sampling {
	s := greedy()
	s.Grammar, s.AnswerStart = &engine.Grammar{Text: text}, engine.Pos(start)
	return s
}

// answer generates up to n tokens after a prompt in session 1, until the model ends, and returns tokens and bytes.
func (c chain) answer(t testing.TB, prompt []engine.TokenID, s *engine.Sampling, n int) (tokens []engine.TokenID, text []byte) {
	t.Helper()
	length, err := c[0].Truncate(t.Context(), id(1), math.MaxUint32)
	if err != nil {
		t.Fatal(err)
	}
	step := engine.Step{Session: id(1), Start: length.Length, Tokens: prompt, Want: engine.WantSample, Sampling: s}
	for range n {
		sample := c.run(t, step)[0].Sample
		tokens = append(tokens, sample.Token)
		if sample.EndOfGeneration {
			break
		}
		text = append(text, sample.Bytes...)
		step.Start, step.Tokens = step.Start+engine.Pos(len(step.Tokens)), []engine.TokenID{sample.Token}
	}
	return tokens, text
}

func (c chain) truncate(t testing.TB, length engine.Pos) {
	t.Helper()
	for _, l := range c {
		if _, err := l.Truncate(t.Context(), id(1), length); err != nil {
			t.Fatal(err)
		}
	}
}

const jsonish = `root ::= object
object ::= "{" pair ("," pair){3} "}"
pair ::= string ":" value
string ::= "\"" [a-z]{1,4} "\""
value ::= string | number | object
number ::= [0-9]{1,3}
`

// TestGrammarHolds: what comes is of the language, ends where it may, and only there.
func TestGrammarHolds(t *testing.T) {
	c := loadChain(t, request(writeModel(t, spec(t, "llama"))), 0, 0)
	c.open(t, 1, 192)
	prompt := tokens(1, 5, 256)
	for name, g := range map[string]struct {
		text string
		want string
	}{
		"words":             {`root ::= "yes" | "no"`, `^(yes|no)$`},
		"class":             {`root ::= [a-f]{3}`, `^[a-f]{3}$`},
		"repetition":        {`root ::= ("ab" | "c"){2,4}`, `^(ab|c){2,4}$`},
		"other than letter": {`root ::= [^a-zA-Z\U00000080-\UFFFFFFFF]{2} "."`, `^[^a-zA-Z]{2}\.$`},
		"text beyond ASCII": {`root ::= "ü€😀"`, `^ü€😀$`},
		"token":             {`root ::= <[262]> "x"`, `x$`},
		"nothing":           {`root ::= ""`, `^$`},
	} {
		for _, how := range []func(*engine.Sampling){
			func(*engine.Sampling) {},
			func(s *engine.Sampling) { s.Temperature, s.Seed = 3, 1 },
			func(s *engine.Sampling) { s.Temperature, s.Seed, s.TopK, s.TopP = 3, 2, 40, 0.95 },
			func(s *engine.Sampling) { s.Temperature, s.Seed, s.Typical, s.MinP = 3, 3, 0.5, 0.01 },
		} {
			s := grammatical(g.text, len(prompt))
			how(s)
			ids, text := c.answer(t, prompt, s, 64)
			if ids[len(ids)-1] != 2 || !regexp.MustCompile(g.want).Match(text) {
				t.Errorf("%s: %q of %v is not %s and its end", name, text, ids, g.want)
			}
			c.truncate(t, 0)
		}
	}
}

// TestGrammarIsAFunctionOfTheAnswer: a run that is continued, replayed, taken back, or split over shards gives the same tokens.
func TestGrammarIsAFunctionOfTheAnswer(t *testing.T) {
	model := writeModel(t, spec(t, "llama"))
	prompt := tokens(1, 5, 256)
	s := grammatical(jsonish, len(prompt))
	s.Temperature, s.Seed = 2, 11
	whole := loadChain(t, request(model), 0, 0)
	whole.open(t, 2, 192)
	want, text := whole.answer(t, prompt, s, 40)
	if len(want) < 12 || text[0] != '{' {
		t.Fatalf("the answer %q is too short for this test", text)
	}
	// Taken back into the middle, and on again.
	for _, keep := range []int{7, 1, 0, 9} {
		whole.truncate(t, engine.Pos(len(prompt)+keep))
		got, _ := whole.answer(t, want[keep:keep+1], s, len(want)-keep-1)
		if !slices.Equal(got, want[keep+1:]) {
			t.Errorf("from token %d on: %v, want %v", keep, got, want[keep+1:])
		}
	}
	// Replayed in one step, in a session that knows nothing of it.
	replay := engine.Step{Session: id(2), Tokens: append(slices.Clone(prompt), want[:10]...), Want: engine.WantSample, Sampling: s}
	if got := whole.run(t, replay)[0].Sample.Token; got != want[10] {
		t.Errorf("a replay gives %d, want %d", got, want[10])
	}
	split := loadChain(t, request(model), 0, 2, 0)
	split.open(t, 1, 192)
	if got, _ := split.answer(t, prompt, s, 40); !slices.Equal(got, want) {
		t.Errorf("two shards give %v, the whole model %v", got, want)
	}
}

// TestGrammarAmongSteps: a session may take a grammar, another one, none, and the first again.
func TestGrammarAmongSteps(t *testing.T) {
	c := loadChain(t, request(writeModel(t, spec(t, "llama"))), 0, 0)
	c.open(t, 1, 192)
	prompt := tokens(1, 4, 256)
	free, _ := c.answer(t, prompt, greedy(), 6)
	for range 2 {
		for text, want := range map[string]string{`root ::= "a"+`: "aaaaaa", `root ::= "b"+`: "bbbbbb"} {
			c.truncate(t, 0)
			s := grammatical(text, len(prompt))
			s.LogitBias = []engine.LogitBias{{Token: 2, Bias: float32(math.Inf(-1))}}
			if _, got := c.answer(t, prompt, s, 6); !bytes.HasPrefix(got, []byte(want)) {
				t.Errorf("%q is not of %s", got, text)
			}
		}
		c.truncate(t, 0)
		if got, _ := c.answer(t, prompt, greedy(), 6); !slices.Equal(got, free) {
			t.Errorf("without a grammar %v came, and %v before", got, free)
		}
	}
}

func TestLazyGrammar(t *testing.T) {
	l := load(t, request(writeModel(t, spec(t, "llama"))), 0, 0)
	l.open(t, 1, 192)
	letters, err := l.text.Tokenize(t.Context(), "xx<go>a", false, false)
	if err != nil {
		t.Fatal(err)
	}
	prompt := tokens(1, 4, 256)
	for name, g := range map[string]engine.Grammar{
		"pattern":        {TriggerPatterns: []string{"<go>"}, Text: `root ::= "<go>" [ab]+`},
		"group":          {TriggerPatterns: []string{"<go>(a)"}, Text: `root ::= [ab]+`},
		"anchored":       {TriggerPatterns: []string{"^x+(<go>)[a-z]*$"}, Text: `root ::= "<go>" [ab]+`},
		"token":          {TriggerTokens: letters[len(letters)-1:], Text: `root ::= [ab]+`},
		"second pattern": {TriggerPatterns: []string{"never", "o>"}, Text: `root ::= "o>" [ab]+`},
	} {
		g.Lazy = true
		s := grammatical("", len(prompt))
		s.Grammar = &g
		s.LogitBias = []engine.LogitBias{{Token: 2, Bias: float32(math.Inf(-1))}}
		at := func(n int) string {
			if _, err := l.Truncate(t.Context(), id(1), 0); err != nil {
				t.Fatal(err)
			}
			step := engine.Step{Session: id(1), Tokens: append(slices.Clone(prompt), letters[:n]...), Want: engine.WantSample, Sampling: s}
			return string(l.run(t, step)[0].Sample.Bytes)
		}
		if got := at(2); got == "a" || got == "b" {
			t.Errorf("%s: %q came before the trigger; the model would have to like it", name, got)
		}
		if got := at(len(letters)); strings.Trim(got, "ab") != "" {
			t.Errorf("%s: %q came behind the trigger", name, got)
		}
	}
}

// TestGrammarPrefill: what stands in the prompt of the answer is consumed, and not consumed again after a return.
func TestGrammarPrefill(t *testing.T) {
	c := loadChain(t, request(writeModel(t, spec(t, "llama"))), 0, 0)
	c.open(t, 1, 192)
	prompt := tokens(1, 4, 256)
	s := grammatical(`root ::= "<answer>" [ab]{2} "."`, len(prompt))
	s.Grammar.Prefill = "<answer>"
	for range 2 {
		if _, got := c.answer(t, prompt, s, 16); !regexp.MustCompile(`^[ab]{2}\.$`).Match(got) {
			t.Errorf("%q", got)
		}
		c.truncate(t, 0)
	}
	s.Grammar.Prefill = "<other>"
	results, err := c[0].Step(t.Context(), []engine.Step{{Session: id(1), Tokens: prompt, Want: engine.WantSample, Sampling: s}})
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, results[0].Err, engine.InvalidGrammar)
	wantCode(t, c[0].text.CheckGrammar(t.Context(), *s.Grammar), engine.InvalidGrammar)
}

// hostile are grammars that must be refused, quickly and without a crash.
func hostile() map[string]engine.Grammar {
	double := func(n int, last string) string { // each rule goes to the next one in two ways
		var b strings.Builder
		b.WriteString("root ::= r0\n")
		for i := range n {
			fmt.Fprintf(&b, "r%d ::= r%d \"b\" | r%d \"c\"\n", i, i+1, i+1)
		}
		fmt.Fprintf(&b, "r%d ::= %s\n", n, last)
		return b.String()
	}
	deep := func(n int) string {
		var b strings.Builder
		b.WriteString("root ::= r0\n")
		for i := range n {
			fmt.Fprintf(&b, "r%d ::= r%d\n", i, i+1)
		}
		fmt.Fprintf(&b, "r%d ::= \"a\"\n", n)
		return b.String()
	}
	word := `root ::= "a"`
	lazy := func(patterns ...string) engine.Grammar {
		return engine.Grammar{Text: word, Lazy: true, TriggerPatterns: patterns}
	}
	return map[string]engine.Grammar{
		"empty":                      {},
		"no rule":                    {Text: "root"},
		"no root":                    {Text: `start ::= "a"`},
		"undefined rule":             {Text: `root ::= other`},
		"open literal":               {Text: `root ::= "a`},
		"open class":                 {Text: `root ::= [a`},
		"open group":                 {Text: `root ::= ("a"`},
		"unknown escape":             {Text: `root ::= "\q"`},
		"short escape":               {Text: `root ::= "\x1"`},
		"repetition of nothing":      {Text: `root ::= *`},
		"zero byte":                  {Text: "root ::= \"a\"\x00"},
		"left recursion":             {Text: "root ::= root \"a\" | \"a\""},
		"left recursion by two":      {Text: "root ::= a\na ::= b \"x\"\nb ::= a \"y\" | \"z\""},
		"hidden left recursion":      {Text: "root ::= n root \"x\" | \"y\"\nn ::= m\nm ::= \"\""},
		"a million repetitions":      {Text: `root ::= "a"{1000000}`},
		"nested repetitions":         {Text: `root ::= ((("a"{1,900}){1,900}){1,900})`},
		"long literal repeated":      {Text: `root ::= "` + strings.Repeat("a", 50000) + `"{2000}`},
		"number too large":           {Text: `root ::= "a"{99999999999999999999}`},
		"nested groups":              {Text: `root ::= ` + strings.Repeat("(", 60000) + `"a"` + strings.Repeat(")", 60000)},
		"nested open groups":         {Text: `root ::= ` + strings.Repeat("(", 500000)},
		"deep rules":                 {Text: deep(30000)},
		"exponentially many checks":  {Text: double(40, `"a"`)},
		"exponentially many stacks":  {Text: strings.ReplaceAll(double(24, `"a"`), "r24 ::=", "r24 ::= \"\" |")},
		"token without an end":       {Text: `root ::= <` + strings.Repeat("a", 1000)},
		"unknown token":              {Text: `root ::= <no-such-token>`},
		"text too long":              {Text: word + strings.Repeat(" ", 1<<20)},
		"prefill that does not fit":  {Text: word, Prefill: "b"},
		"prefill behind the end":     {Text: word, Prefill: "aa"},
		"prefill too long":           {Text: `root ::= "a"*`, Prefill: strings.Repeat("a", 17<<10)},
		"pattern that is none":       lazy("("),
		"pattern without text":       lazy(""),
		"pattern too long":           lazy(strings.Repeat("a", 1025)),
		"repeating pattern too long": lazy(strings.Repeat("a*", 65)),
		"pattern that counts":        lazy("((a{99}){99}){99}"),
		"pattern looking back":       lazy(`(a)\1`),
		"too many patterns":          lazy(slices.Repeat([]string{"a"}, 65)...),
	}
}

func TestHostileGrammars(t *testing.T) {
	l := load(t, request(writeModel(t, spec(t, "llama"))), 0, 0)
	l.open(t, 1, 64)
	for name, g := range hostile() {
		begin := time.Now()
		wantCode(t, l.text.CheckGrammar(t.Context(), g), engine.InvalidGrammar)
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("%s: refused after %v", name, took)
		}
		s := greedy()
		s.Grammar = &g
		before := l.Metrics().Rows
		results, err := l.Step(t.Context(), []engine.Step{{Session: id(1), Tokens: tokens(1, 3, 256), Want: engine.WantSample, Sampling: s}})
		if err != nil {
			t.Fatal(err)
		}
		wantCode(t, results[0].Err, engine.InvalidGrammar)
		if l.Metrics().Rows != before || results[0].Cache.Length != 0 {
			t.Errorf("%s: something was evaluated", name)
		}
	}
	bad := engine.Grammar{Text: `root ::= "a"`, Lazy: true, TriggerTokens: []engine.TokenID{1 << 30}}
	wantCode(t, l.text.CheckGrammar(t.Context(), bad), engine.TokenOutOfRange)
}

// TestAmbiguousGrammarIsBounded: stacks double with each letter; the run ends with an error instead of never.
func TestAmbiguousGrammarIsBounded(t *testing.T) {
	l := load(t, request(writeModel(t, spec(t, "llama"))), 0, 0)
	l.open(t, 1, 192)
	s := grammatical(`root ::= "a" root "b" | "a" root "c" | ""`, 1)
	text, err := l.text.Tokenize(t.Context(), "x"+strings.Repeat("a", 100), false, false)
	if err != nil {
		t.Fatal(err)
	}
	text = text[:min(len(text), 60)]
	results, err := l.Step(t.Context(), []engine.Step{{Session: id(1), Tokens: text, Want: engine.WantSample, Sampling: s}})
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, results[0].Err, engine.InvalidGrammar)
	if _, free := l.answerFree(t); len(free) == 0 {
		t.Error("the session is of no use afterwards")
	}
}

func (l *loaded) answerFree(t *testing.T) (tokens []engine.TokenID, text []byte) {
	return chain{l}.answer(t, []engine.TokenID{5, 6}, greedy(), 3)
}

// TestAnswersThatLeaveTheGrammar are errors before anything is evaluated, and the session goes on.
func TestAnswersThatLeaveTheGrammar(t *testing.T) {
	l := load(t, request(writeModel(t, spec(t, "llama"))), 0, 0)
	l.open(t, 1, 64)
	var ab []engine.TokenID
	for _, letter := range []string{"a", "b"} {
		ids, err := l.text.Tokenize(t.Context(), letter, false, false)
		if err != nil || len(ids) != 1 {
			t.Fatal(ids, err)
		}
		ab = append(ab, ids...)
	}
	minusInf := float32(math.Inf(-1))
	for name, c := range map[string]struct {
		tokens []engine.TokenID
		change func(*engine.Sampling)
		want   engine.Code
	}{
		"another letter":   {ab[1:], func(*engine.Sampling) {}, engine.InvalidGrammar},
		"half a character": {[]engine.TokenID{3 + 0xFC}, func(*engine.Sampling) {}, engine.InvalidGrammar},
		"an early end":     {[]engine.TokenID{2}, func(*engine.Sampling) {}, engine.InvalidGrammar},
		"a start behind":   {ab[:1], func(s *engine.Sampling) { s.AnswerStart = 2 }, engine.Malformed},
		"all allowed forbidden": {ab[:1], func(s *engine.Sampling) {
			for token := range engine.TokenID(l.info.Vocab) {
				if piece, _ := l.text.Detokenize(t.Context(), []engine.TokenID{token}, false); len(piece) > 0 && piece[0] == 'b' && len(s.LogitBias) < 1024 {
					s.LogitBias = append(s.LogitBias, engine.LogitBias{Token: token, Bias: minusInf})
				}
			}
		}, engine.InvalidGrammar},
	} {
		s := grammatical(`root ::= "a" "b"`, 0)
		c.change(s)
		results, err := l.Step(t.Context(), []engine.Step{{Session: id(1), Tokens: c.tokens, Want: engine.WantSample, Sampling: s}})
		if err != nil {
			t.Fatal(err)
		}
		if err := results[0].Err; err != nil && !utf8.ValidString(err.Error()) {
			t.Errorf("%s: the error %q is no text", name, err)
		}
		if engine.CodeOf(results[0].Err) != c.want || results[0].Cache.Length != 0 {
			t.Errorf("%s: error %v at %d tokens, want %s at 0", name, results[0].Err, results[0].Cache.Length, c.want)
		}
	}
	if got := l.run(t, engine.Step{Session: id(1), Tokens: ab[:1], Want: engine.WantSample, Sampling: grammatical(`root ::= "a" "b"`, 0)})[0].Sample; string(got.Bytes) != "b" {
		t.Errorf("%q came, want b", got.Bytes)
	}
}

// TestRenderedGrammarsAreTaken: what RenderChat gives is what a step takes, and a schema's answer is of the schema.
func TestRenderedGrammarsAreTaken(t *testing.T) {
	e := chat(t, templates(t)["Qwen-Qwen2.5-7B-Instruct"])
	for name, request := range map[string]engine.ChatRequest{
		"tools":    {Messages: hello, Tools: twoTools},
		"required": {Messages: hello, Tools: twoTools, ToolChoice: "required"},
		"schema":   {Messages: hello, JSONSchema: `{"type":"object","properties":{"age":{"type":"integer","minimum":0,"maximum":99}},"required":["age"]}`},
	} {
		g := rendered(t, e, request).Grammar
		if g == nil {
			t.Fatalf("%s: no grammar", name)
		}
		if err := e.text.CheckGrammar(t.Context(), *g); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
