package enginetest

import (
	"testing"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

func (s suite) outputCases() []testCase {
	wants := map[string]engine.Want{
		"none": engine.WantNone, "logits_last": engine.WantLogitsLast, "logits_all": engine.WantLogitsAll, "sample": engine.WantSample,
	}
	var cases []testCase
	for name, want := range wants {
		cases = append(cases,
			testCase{"tail_" + name, func(t *testing.T) { s.tailOutput(t, want) }},
			testCase{"head_gives_a_boundary_with_" + name, func(t *testing.T) {
				n := s.load(t, engine.LayerRange{}).info.NLayer
				head := s.load(t, engine.LayerRange{End: s.cuts(n)[0]})
				session := head.open(t, 1, 16)
				result := head.one(t, head.step(session, 0, head.tokens(1, 5), want))
				checkRows(t, "boundary", result.Boundary, 5, head.info.BoundaryOut.Width)
				if len(result.Logits.Data) != 0 || result.Sample != nil {
					t.Error("a shard that is no tail has logits or a sample")
				}
			}})
	}
	return append(cases,
		testCase{"an_empty_boundary_need_not_be_nil", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			step := sh.step(sh.open(t, 1, 16), 0, sh.tokens(1, 4), engine.WantNone)
			step.Boundary.Data = []byte{}
			sh.one(t, step)
		}},
		testCase{"all_logits_end_with_the_last", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			a, b := sh.open(t, 1, 16), sh.open(t, 2, 16)
			all := floats(sh.one(t, sh.step(a, 0, sh.tokens(1, 5), engine.WantLogitsAll)).Logits)
			last := floats(sh.one(t, sh.step(b, 0, sh.tokens(1, 5), engine.WantLogitsLast)).Logits)
			s.near(t, "the last row of all logits", all[4*sh.info.Vocab:], last)
		}},
		testCase{"rows_follow_the_order_of_tokens", func(t *testing.T) {
			// Row i depends on the tokens up to i alone: the same prefix gives the same rows, another token another row.
			sh := s.load(t, engine.LayerRange{})
			a, b := sh.open(t, 1, 16), sh.open(t, 2, 16)
			tokens := sh.tokens(1, 5)
			other := append(tokens[:4:4], (tokens[4]+1)%engine.TokenID(sh.info.Vocab))
			x := floats(sh.one(t, sh.step(a, 0, tokens, engine.WantLogitsAll)).Logits)
			y := floats(sh.one(t, sh.step(b, 0, other, engine.WantLogitsAll)).Logits)
			v := int(sh.info.Vocab)
			s.near(t, "the rows of a common prefix", x[:4*v], y[:4*v])
			if equal(x[4*v:], y[4*v:]) {
				t.Error("another last token gives the same last row")
			}
			if equal(x[:v], x[v:2*v]) {
				t.Error("the first two rows are the same")
			}
		}},
		testCase{"the_cache_is_seen", func(t *testing.T) {
			// The same token after two prefixes gives two results.
			sh := s.load(t, engine.LayerRange{})
			a, b := sh.open(t, 1, 16), sh.open(t, 2, 16)
			sh.one(t, sh.step(a, 0, sh.tokens(1, 4), engine.WantNone))
			sh.one(t, sh.step(b, 0, sh.tokens(9, 4), engine.WantNone))
			x := sh.one(t, sh.step(a, 4, sh.tokens(5, 1), engine.WantLogitsLast))
			y := sh.one(t, sh.step(b, 4, sh.tokens(5, 1), engine.WantLogitsLast))
			if equal(floats(x.Logits), floats(y.Logits)) {
				t.Error("the logits do not depend on the tokens before")
			}
		}},
		testCase{"the_same_steps_give_the_same_bits", func(t *testing.T) {
			sh, again := s.load(t, engine.LayerRange{}), s.load(t, engine.LayerRange{})
			x, y := sh.trace(t, 1), again.trace(t, 1)
			for i := range x {
				sameBits(t, "logits of a second engine", y[i], x[i])
			}
		}},
		testCase{"a_batch_as_large_as_allowed", func(t *testing.T) {
			sh := s.load(t, engine.LayerRange{})
			n := min(s.Request.BatchTokens, s.Request.ContextLimit)
			session := sh.open(t, 1, s.Request.ContextLimit)
			result := sh.one(t, sh.step(session, 0, sh.tokens(1, int(n)), engine.WantLogitsAll))
			checkRows(t, "logits", result.Logits, n, sh.info.Vocab)
		}})
}

func (s suite) tailOutput(t *testing.T, want engine.Want) {
	for _, first := range []uint32{0, s.cuts(s.load(t, engine.LayerRange{}).info.NLayer)[0]} {
		sh := s.load(t, engine.LayerRange{First: first})
		session := sh.open(t, 1, 16)
		result := sh.one(t, sh.step(session, 0, sh.tokens(1, 5), want))
		if len(result.Boundary.Data) != 0 {
			t.Error("the tail has a boundary")
		}
		switch want {
		case engine.WantLogitsLast:
			checkRows(t, "logits", result.Logits, 1, sh.info.Vocab)
		case engine.WantLogitsAll:
			checkRows(t, "logits", result.Logits, 5, sh.info.Vocab)
		default:
			if len(result.Logits.Data) != 0 {
				t.Error("logits that nobody asked for")
			}
		}
		if (result.Sample != nil) != (want == engine.WantSample) {
			t.Errorf("sample is %v", result.Sample)
		}
	}
}

func equal(a, b []float32) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return len(a) == len(b)
}

// plan is a session as lengths of steps.
var plan = []int{7, 5, 1, 1, 3, 1}

// trace runs the plan on a new session and returns the last logits (or boundary) of each step.
func (sh *shard) trace(t *testing.T, n byte) []engine.Rows {
	t.Helper()
	return chain{sh}.trace(t, n)
}

func (c chain) trace(t *testing.T, n byte) []engine.Rows {
	t.Helper()
	session := c.open(t, n, 24)
	var rows []engine.Rows
	var at engine.Pos
	for i := range plan {
		rows = append(rows, c.next(t, session, &at, i))
	}
	return rows
}

// next runs step i of the plan. The tokens follow from the session's number and i.
func (c chain) next(t *testing.T, session engine.SessionID, at *engine.Pos, i int) engine.Rows {
	t.Helper()
	tokens := c[0].tokens(uint32(session[15])<<8|uint32(i), plan[i])
	want := engine.WantLogitsAll
	if i%2 == 1 {
		want = engine.WantLogitsLast
	}
	result := c.run(t, c[0].step(session, *at, tokens, want))
	*at += engine.Pos(plan[i])
	if len(result.Logits.Data) > 0 {
		return result.Logits
	}
	return result.Boundary
}
