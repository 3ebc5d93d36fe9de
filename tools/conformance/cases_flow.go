package conformance

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// flowCases are about credit and room.
func flowCases() []Case {
	const slow = workerpb.ErrorCode_ERROR_CODE_SLOW_CONSUMER
	return []Case{
		{ID: "flow.window-exceeded", Clauses: []string{"FLO-2"}, Says: "One step more than the window while none is answered ends the attempt with WINDOW_EXCEEDED.", Run: func(t *T) {
			d := t.openDriver(func(o *workerpb.Open) { o.Receive.Tokens = proto.Uint32(1) })
			run := d.put(d.step(generate(8, t.ids(2, 1)))) // waits for room after its first token, so nothing behind it is answered
			for len(d.of(run).tokens) == 0 {
				if !d.take() {
					t.Fatalf("the stream ended: %v", d.end)
				}
			}
			for d.steps > 0 {
				d.give(d.step(prefill(t.ids(1, 1)...), func(s *workerpb.Step) { s.ExpectCache = nil }))
				for len(d.in) > 0 && d.take() {
				}
			}
			d.give(d.step(prefill(t.ids(1, 1)...), func(s *workerpb.Step) { s.ExpectCache = nil }))
			d.ends(workerpb.ErrorCode_ERROR_CODE_WINDOW_EXCEEDED)
		}},
		{ID: "flow.credit-returns", Clauses: []string{"FLO-1"}, Says: "Steps that ran, failed and were truncations give their credit back exactly once.", Run: func(t *T) {
			d := t.openDriver()
			window := int64(d.opened.GetWindow().GetSteps())
			for range 3 * window {
				d.result(d.put(d.step(prefill(t.ids(1, 1)...))))
				d.failed(d.give(d.step(prefill(t.vocab()))), workerpb.ErrorCode_ERROR_CODE_TOKEN_OUT_OF_RANGE)
				d.result(d.put(d.step(truncate(0))))
				d.result(d.put(d.step(truncate(9)))) // which has nothing to do
				if window > 1 && d.steps != window { // now, for a window that seems used up may grow later
					t.Fatalf("%d steps of credit are left of %d", d.steps, window)
				}
			}
			d.finish()
		}},
		{ID: "flow.receive-tokens", Clauses: []string{"FLO-4"}, Says: "No more tokens come than receive.tokens allows; with ReceiveCredit the run goes on to the same end.", Run: func(t *T) {
			free := t.openDriver()
			want := free.run(8, t.ids(3, 2))
			free.finish()
			d := t.openDriver(func(o *workerpb.Open) { o.Receive.Tokens = proto.Uint32(2) })
			id := d.put(d.step(generate(8, t.ids(3, 2))))
			for len(d.of(id).tokens) < 2 {
				if !d.take() {
					t.Fatalf("the stream ended: %v", d.end)
				}
			}
			d.silent("with no room left")
			for _, more := range []uint32{1, 2} {
				d.send(receiveCredit(more, 0))
				for n := len(d.of(id).tokens) + int(more); len(d.of(id).tokens) < n; {
					if !d.take() {
						t.Fatalf("the stream ended: %v", d.end)
					}
				}
				d.silent("with no room left again")
			}
			d.send(receiveCredit(100, 0))
			if r := d.done(id); r.failed != nil || !slices.Equal(sampled(r), want) {
				t.Errorf("the run gave %v, %v; unhindered %v", sampled(r), r.failed, want)
			}
			d.finish()
		}},
		{ID: "flow.receive-zero", Clauses: []string{"FLO-4"}, Says: "With room for no token a run samples none until there is room.", Run: func(t *T) {
			d := t.openDriver(func(o *workerpb.Open) { o.Receive.Tokens = proto.Uint32(0) })
			id := d.put(d.step(generate(2, t.ids(3, 2))))
			d.silent("with no room at all")
			d.send(receiveCredit(2, 0))
			d.done(id)
			d.finish()
		}},
		{ID: "flow.slow-consumer", Clauses: []string{"FLO-4", "ERR-6"}, Says: "A run that waits for room longer than its bounds ends with SLOW_CONSUMER.", Run: func(t *T) {
			d := t.openDriver(func(o *workerpb.Open) { o.Receive.Tokens = proto.Uint32(1) })
			d.put(d.step(generate(8, t.ids(3, 2), func(g *workerpb.Generate) { g.TokenBudget = durationpb.New(200 * time.Millisecond) })))
			d.ends(slow)
		}},
		{ID: "flow.slow-consumer-logits", Clauses: []string{"FLO-4"}, Says: "Logits that receive.bytes has no room for are not sent; with ReceiveCredit they are.", Run: func(t *T) {
			d := t.openDriver(func(o *workerpb.Open) { o.Receive.Bytes = proto.Uint64(uint64(t.vocab())*4 - 1) })
			id := d.put(d.step(decode(workerpb.Want_WANT_LOGITS_LAST, t.ids(2, 2)...)))
			d.silent("with a byte too little room")
			d.send(receiveCredit(0, 1))
			d.logits(id)
			d.finish()
		}},
		{ID: "flow.receive-credit-huge", Clauses: []string{"FLO-7", "VER-2"}, Says: "Credits near 2⁶⁴ do not wrap around.", Run: func(t *T) {
			d := t.openDriver(func(o *workerpb.Open) { o.Receive.Tokens, o.Receive.Bytes = proto.Uint32(0), proto.Uint64(0) })
			for range 4 {
				d.send(receiveCredit(1<<32-1, 1<<64-1))
			}
			d.run(4, t.ids(3, 2))
			d.logits(d.put(d.step(decode(workerpb.Want_WANT_LOGITS_LAST, t.ids(2, 2)...))))
			d.finish()
		}},
		{ID: "flow.logits-framed", Clauses: []string{"FLO-5"}, Says: "Logits that are larger than a frame come in full frames before their result.", Run: framedLogits, Skip: func(t *Target) string {
			if n := uint64(t.vocab()) * 4 * uint64(t.head().Is.GetLimits().GetStepTokens()); n < 1<<20 {
				return label("the logits of a greatest step are %d bytes, no more than a frame may hold", n)
			}
			return ""
		}},
		{ID: "flow.many-sessions", Clauses: []string{"FLO-3", "CAN-2"}, Says: "A session that waits for room does not hold up another.", Run: func(t *T) {
			if t.head().Is.GetLimits().GetSessions() < 2 {
				return
			}
			stuck := t.openDriver(func(o *workerpb.Open) { o.Receive.Tokens = proto.Uint32(1) })
			stuck.put(stuck.step(generate(8, t.ids(3, 2))))
			began := time.Now()
			d := t.openDriver()
			d.run(4, t.ids(3, 2))
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("the other session took %v", took)
			}
			d.finish()
			stuck.finish()
		}},
	}
}

func framedLogits(t *T) {
	d := t.openDriver(func(o *workerpb.Open) { o.ContextTokens = t.head().Is.GetShard().GetContextLimit() })
	rows := int(uint64(d.opened.GetFrameBytes())/(uint64(t.vocab())*4)) + 1
	if rows > int(d.opened.GetMaxStepTokens()) || rows > int(d.open.GetContextTokens()) {
		t.Fatalf("%d rows fill a frame of %d bytes, a step holds %d; the case does not fit", rows, d.opened.GetFrameBytes(), d.opened.GetMaxStepTokens())
	}
	id := d.put(d.step(decode(workerpb.Want_WANT_LOGITS_ALL, t.ids(rows, 2)...)))
	if all := d.logits(id); len(all) != rows*int(t.vocab())*4 || len(d.of(id).frames) < 2 {
		t.Errorf("%d bytes came in %d frames", len(all), len(d.of(id).frames))
	}
	d.finish()
}

// textCases are about TextService.
func textCases() []Case {
	tokenize := func(t *T, h *Hop, text string, special bool) []uint32 {
		a, err := h.Text.Tokenize(t.ctx, &workerpb.TokenizeRequest{Fingerprint: t.head().Is.GetShard().GetFingerprint(), Text: text, AddSpecial: special})
		if err != nil {
			t.Fatalf("Tokenize at %s: %v", h.Address, err)
		}
		return a.GetTokens()
	}
	detokenize := func(t *T, h *Hop, ids []uint32) []byte {
		a, err := h.Text.Detokenize(t.ctx, &workerpb.DetokenizeRequest{Fingerprint: t.head().Is.GetShard().GetFingerprint(), Tokens: ids})
		if err != nil {
			t.Fatalf("Detokenize at %s: %v", h.Address, err)
		}
		return a.GetData()
	}
	cases := []Case{
		{ID: "text.same-everywhere", Clauses: []string{"TXT-1"}, Says: "Every hop tokenizes alike.", Run: func(t *T) {
			want := tokenize(t, t.head(), "Once upon a time", true)
			for _, h := range t.Hops {
				if got := tokenize(t, h, "Once upon a time", true); !slices.Equal(got, want) {
					t.Errorf("%s says %v, %s says %v", h.Address, got, t.head().Address, want)
				}
			}
		}},
		{ID: "text.special-once", Clauses: []string{"TXT-4"}, Says: "add_special adds at the ends only, and the rest is what stands without.", Run: func(t *T) {
			with, without := tokenize(t, t.head(), "a b c", true), tokenize(t, t.head(), "a b c", false)
			if len(with) < len(without) || len(with) > len(without)+2 || !contains(with, without) {
				t.Errorf("with special tokens %v, without %v", with, without)
			}
		}},
		{ID: "text.parts", Clauses: []string{"TXT-3"}, Says: "Detokenize of two parts gives, together, what it gives for the whole.", Run: func(t *T) {
			ids := tokenize(t, t.head(), "Grüße, 世界! 🎈 done", false)
			whole := detokenize(t, t.head(), ids)
			for cut := range ids {
				if got := append(detokenize(t, t.head(), ids[:cut]), detokenize(t, t.head(), ids[cut:])...); string(got) != string(whole) {
					t.Fatalf("cut at %d: %q, whole %q", cut, got, whole)
				}
			}
		}},
		{ID: "text.token-out-of-range", Clauses: []string{"STP-6"}, Says: "Detokenize of an unknown id is TOKEN_OUT_OF_RANGE.", Run: func(t *T) {
			_, err := t.head().Text.Detokenize(t.ctx, &workerpb.DetokenizeRequest{Fingerprint: t.head().Is.GetShard().GetFingerprint(), Tokens: []uint32{t.vocab()}})
			t.want(t.errorOf(err), workerpb.ErrorCode_ERROR_CODE_TOKEN_OUT_OF_RANGE)
		}},
		{ID: "text.tokenize-other-model", Clauses: []string{"TXT-2"}, Says: "Tokenize for another fingerprint is SHARD_MISMATCH.", Run: func(t *T) {
			_, err := t.head().Text.Tokenize(t.ctx, &workerpb.TokenizeRequest{Fingerprint: random(32), Text: "a"})
			t.want(t.errorOf(err), otherShard)
		}},
		{ID: "text.detokenize-other-model", Clauses: []string{"TXT-2"}, Says: "Detokenize for another fingerprint is SHARD_MISMATCH.", Run: func(t *T) {
			_, err := t.head().Text.Detokenize(t.ctx, &workerpb.DetokenizeRequest{Fingerprint: random(32), Tokens: []uint32{1}})
			t.want(t.errorOf(err), otherShard)
		}},
	}
	for i := range cases {
		cases[i].Skip = needs("text.tokenize")
	}
	cases = append(cases, chatCases()...)
	return append(cases, Case{ID: "text.no-template", Clauses: []string{"TXT-5"}, Says: "RenderChat without a template, or where chat is not ON, is refused; there is no default.", Skip: func(t *Target) string {
		if t.on("text.chat") && t.head().Is.GetText().GetChatTemplate() {
			return "the model has a chat template and text.chat is ON"
		}
		return ""
	}, Run: func(t *T) {
		_, err := t.head().Text.RenderChat(t.ctx, &workerpb.RenderChatRequest{
			Fingerprint: t.head().Is.GetShard().GetFingerprint(), MessagesJson: `[{"role":"user","content":"hi"}]`,
		})
		if e := t.errorOf(err); e.GetCode() != workerpb.ErrorCode_ERROR_CODE_NO_TEMPLATE && e.GetCode() != unsupported {
			t.Errorf("%s came", name(e.GetCode()))
		}
	}})
}

// contains says whether part stands in all, without gap.
func contains(all, part []uint32) bool {
	for i := 0; i+len(part) <= len(all); i++ {
		if slices.Equal(all[i:i+len(part)], part) {
			return true
		}
	}
	return false
}

// hubCases carry boundaries between workers that do not dial each other.
func hubCases() []Case {
	skip := either(needs("hub"), hops(2))
	return []Case{
		{ID: "hub.same-text", Clauses: []string{"HUB-1", "HUB-2", "HUB-3"}, Skip: skip, Says: "A driver that relays boundaries itself gets the tokens of the chained route.", Run: func(t *T) {
			tokens := t.ids(5, 2)
			chained := t.openDriver()
			want := chained.run(6, tokens)
			chained.finish()
			r := t.relay()
			var got []uint32
			next := tokens
			for range 6 {
				id := r.through(next, workerpb.Want_WANT_SAMPLE)
				got = append(got, id)
				next = []uint32{id}
			}
			if !slices.Equal(got, want) {
				t.Errorf("relayed %v, chained %v", got, want)
			}
		}},
		{ID: "hub.generate-refused", Clauses: []string{"GEN-9"}, Skip: needs("hub"), Says: "Generate with egress RETURN is UNSUPPORTED_FEATURE.", Run: func(t *T) {
			d := t.openDriver(returning)
			d.failed(d.give(d.step(someRun(t))), unsupported)
			d.usableIn(t)
		}},
		{ID: "hub.boundary", Clauses: []string{"HUB-1", "STP-9"}, Skip: skip, Says: "With egress RETURN a Prefill's boundary comes back, a row a token, as the layout says.", Run: func(t *T) {
			d := t.openDriver(returning)
			id := d.put(d.step(prefill(t.ids(4, 1)...)))
			d.result(id)
			r := d.of(id)
			b := r.result.GetOutput().GetBoundary()
			d.payload(r, b)
			if out := t.head().Is.GetShard().GetBoundaryOut(); b.GetRows() != 4 || b.GetWidth() != out.GetWidth() {
				t.Errorf("%d × %d values came, 4 × %d are due", b.GetRows(), b.GetWidth(), out.GetWidth())
			}
			d.finish()
		}},
		{ID: "hub.receive-bytes", Clauses: []string{"HUB-1", "FLO-4"}, Skip: skip, Says: "A boundary that receive.bytes has no room for is not sent; with ReceiveCredit it is.", Run: func(t *T) {
			size := uint64(3) * uint64(t.head().Is.GetShard().GetBoundaryOut().GetWidth()) * 4
			d := t.openDriver(returning, func(o *workerpb.Open) { o.Receive.Bytes = proto.Uint64(size - 1) })
			id := d.put(d.step(prefill(t.ids(3, 2)...)))
			d.silent("with a byte too little room")
			d.send(receiveCredit(0, 1))
			d.result(id)
			d.finish()
		}},
		{ID: "hub.wants", Clauses: []string{"HUB-3", "STP-12"}, Skip: needs("hub"), Says: "At the tail with egress RETURN Decode gives nothing, logits of the last or of each token, or one token, as it is asked.", Run: hubWants},
		behindHead("missing", "A step without a boundary behind the head is MALFORMED.", func(_ *T, s *workerpb.Step) { s.Boundary = nil }),
		behindHead("rows", "A boundary with other rows than tokens is MALFORMED.", func(_ *T, s *workerpb.Step) { s.Boundary.Rows++ }),
		behindHead("width", "A boundary of another width is MALFORMED.", func(_ *T, s *workerpb.Step) { s.Boundary.Width++ }),
		behindHead("size", "A boundary of another size is MALFORMED.", func(_ *T, s *workerpb.Step) { s.Boundary.Size -= 4 }),
		behindHead("data-short", "A boundary with too few bytes is MALFORMED.", func(_ *T, s *workerpb.Step) { s.Boundary.Data = s.Boundary.Data[4:] }),
		behindHead("data-long", "A boundary with too many bytes is MALFORMED.", func(_ *T, s *workerpb.Step) { s.Boundary.Data = append(s.Boundary.Data, 0) }),
		behindHead("encoding-zero", "A boundary without an encoding is MALFORMED.", func(_ *T, s *workerpb.Step) { s.Boundary.Encoding = 0 }),
		behindHead("encoding-unknown", "A boundary with an unknown encoding is MALFORMED.", func(_ *T, s *workerpb.Step) { s.Boundary.Encoding = 77 }),
		behindHead("unknown-field", "An unknown field in a boundary is MALFORMED.", func(_ *T, s *workerpb.Step) { stranger(s.Boundary) }),
		{ID: "hub.boundary.encoding-reserved", Clauses: []string{"VER-8"}, Skip: skip, Says: "A reserved encoding is UNSUPPORTED_FEATURE.", Run: func(t *T) {
			badBoundary(t, unsupported, func(_ *T, s *workerpb.Step) {
				s.Boundary.Encoding = workerpb.BoundaryEncoding_BOUNDARY_ENCODING_F16
			})
		}},
		{ID: "hub.boundary.nan", Clauses: []string{"FLO-8", "STP-4"}, Skip: skip, Says: "A boundary with NaN is refused and changes nothing.", Run: func(t *T) {
			d := t.openAt(1, returning)
			s := d.step(somePrefill(t))
			fill(t, 1, s)
			for i := range 4 {
				s.Boundary.Data[i] = 0xff
			}
			if r := d.done(d.give(s)); r.failed == nil {
				t.Errorf("a boundary with NaN was evaluated")
			} else {
				d.holds(r.failed.GetCache(), nil)
			}
			d.finish()
		}},
		{ID: "hub.generate-behind-head", Clauses: []string{"GEN-9"}, Skip: hops(2), Says: "Generate on a route that begins behind the head is UNSUPPORTED_FEATURE.", Run: func(t *T) {
			d := t.openAt(1)
			s := d.step(someRun(t))
			fill(t, 1, s)
			d.failed(d.give(s), unsupported)
			d.finish()
		}},
	}
}

func hubWants(t *T) {
	at := len(t.Hops) - 1
	d := t.openAt(at, returning)
	for want, rows := range map[workerpb.Want]uint32{
		workerpb.Want_WANT_NONE: 0, workerpb.Want_WANT_LOGITS_LAST: 1, workerpb.Want_WANT_LOGITS_ALL: 3, workerpb.Want_WANT_SAMPLE: 0,
	} {
		s := d.step(decode(want, t.ids(3, uint32(want))...))
		if at > 0 {
			fill(t, at, s)
		}
		id := d.put(s)
		r, tokens := d.result(id), len(d.of(id).tokens)
		if got := r.GetOutput().GetLogits(); got.GetRows() != rows || rows > 0 && got.GetWidth() != t.vocab() || r.GetOutput().GetBoundary() != nil {
			t.Errorf("%v gave %d × %d logits", want, got.GetRows(), got.GetWidth())
		}
		if (tokens == 1) != (want == workerpb.Want_WANT_SAMPLE) || tokens > 1 {
			t.Errorf("%v gave %d tokens", want, tokens)
		}
	}
	d.finish()
}

func returning(o *workerpb.Open) {
	o.Egress, o.Route = workerpb.Egress_EGRESS_RETURN, nil
}

// usableIn is usable for a session that returns its boundary.
func (d *driver) usableIn(t *T) {
	d.result(d.put(d.step(prefill(t.ids(1, 99)...))))
	d.finish()
}

// fill gives a step the boundary of a hop, all zeros.
func fill(t *T, hop int, s *workerpb.Step) {
	width := t.Hops[hop].Is.GetShard().GetBoundaryIn().GetWidth()
	rows := uint32(max(len(s.GetPrefill().GetTokens()), len(s.GetDecode().GetTokens()), len(s.GetGenerate().GetTokens())))
	s.Boundary = boundaryOf(rows, width, make([]byte, uint64(rows)*uint64(width)*4))
}

func boundaryOf(rows, width uint32, data []byte) *workerpb.Boundary {
	return &workerpb.Boundary{
		Rows: rows, Width: width, Encoding: workerpb.BoundaryEncoding_BOUNDARY_ENCODING_F32, Size: uint64(len(data)), Data: data,
	}
}

// behindHead is a boundary that must be refused.
func behindHead(id, says string, change func(*T, *workerpb.Step)) Case {
	return Case{ID: "hub.boundary." + id, Clauses: []string{"STP-13", "VER-2", "STP-7"}, Skip: either(needs("hub"), hops(2)), Says: says, Run: func(t *T) {
		badBoundary(t, malformed, change)
	}}
}

func badBoundary(t *T, code workerpb.ErrorCode, change func(*T, *workerpb.Step)) {
	d := t.openAt(1, returning)
	s := d.step(somePrefill(t))
	fill(t, 1, s)
	change(t, s)
	d.failed(d.give(s), code)
	good := d.step(somePrefill(t))
	fill(t, 1, good)
	d.result(d.put(good))
	d.finish()
}

// relay is a session on each worker of the route, none of which dials.
type relay struct {
	t     *T
	links []*driver
}

func (t *T) relay() *relay {
	r := &relay{t: t}
	for i := range t.Hops {
		r.links = append(r.links, t.openAt(i, returning))
	}
	return r
}

// through takes tokens through all workers and returns the token that the tail samples.
func (r *relay) through(tokens []uint32, want workerpb.Want) uint32 {
	var carried []byte
	for i, d := range r.links {
		s := d.step(prefill(tokens...))
		if i == len(r.links)-1 {
			s = d.again(decode(want, tokens...))
		}
		if i > 0 {
			width := r.t.Hops[i].Is.GetShard().GetBoundaryIn().GetWidth()
			s.Boundary = boundaryOf(uint32(len(tokens)), width, carried)
		}
		id := d.put(s)
		d.result(id)
		reply := d.of(id)
		if i == len(r.links)-1 {
			return sampled(reply)[0]
		}
		carried = d.payload(reply, reply.result.GetOutput().GetBoundary())
	}
	return 0
}

// again makes the step that was just made anew, of another kind.
func (d *driver) again(change func(*workerpb.Step)) *workerpb.Step {
	d.id--
	return d.step(change)
}

// shardCases are requests to ShardService and TextService that change nothing.
func shardCases() []Case {
	load := func(t *T, m *workerpb.LoadShardRequest) error {
		s, err := t.head().Shard.LoadShard(t.ctx, m)
		if err == nil {
			_, err = s.Recv()
		}
		return err
	}
	unchanged := func(t *T) {
		d := t.openDriver()
		d.usable()
		d.finish()
	}
	refused := func(id, says, model string) Case {
		return Case{ID: "shard.load." + id, Clauses: []string{"SHD-1", "ERR-1"}, Says: says, Run: func(t *T) {
			t.errorOf(load(t, &workerpb.LoadShardRequest{Model: model, First: proto.Uint32(0)}))
			unchanged(t)
		}}
	}
	illegal := func(path, id string, call func(*T) error) Case {
		return Case{ID: id, Clauses: []string{"VER-2", "ERR-1"}, Says: id + " is MALFORMED, with the path of the field, and changes nothing.", Run: func(t *T) {
			if got := t.want(t.errorOf(call(t)), malformed).GetDetail().GetField().GetPath(); got != path {
				t.Errorf("the detail names the field %q, %q is due", got, path)
			}
			unchanged(t)
		}}
	}
	return []Case{
		refused("path", "An absolute path is refused.", "/etc/passwd"),
		refused("parent", "A path upwards is refused.", "../model.gguf"),
		refused("url", "A URL is refused.", "http://192.0.2.1/model.gguf"),
		refused("unknown", "A name that the store does not have is refused.", "no-such-model-4711"),
		illegal("model", "shard.load.empty", func(t *T) error { return load(t, &workerpb.LoadShardRequest{First: proto.Uint32(0)}) }),
		illegal("model", "shard.load.257-bytes", func(t *T) error {
			return load(t, &workerpb.LoadShardRequest{Model: strings.Repeat("m", 257), First: proto.Uint32(0)})
		}),
		illegal("first", "shard.load.no-first", func(t *T) error { return load(t, &workerpb.LoadShardRequest{Model: "m"}) }),
		illegal("end", "shard.load.end-at-first", func(t *T) error {
			return load(t, &workerpb.LoadShardRequest{Model: "m", First: proto.Uint32(1), End: proto.Uint32(1)})
		}),
		illegal("fingerprint", "shard.load.fingerprint-31-bytes", func(t *T) error {
			return load(t, &workerpb.LoadShardRequest{Model: "m", First: proto.Uint32(0), Fingerprint: random(31)})
		}),
		illegal("budget", "shard.drain.negative", func(t *T) error {
			_, err := t.head().Shard.Drain(t.ctx, &workerpb.DrainRequest{Budget: durationpb.New(-time.Second)})
			return err
		}),
		illegal("fingerprint", "text.tokenize-31-bytes", func(t *T) error {
			_, err := t.head().Text.Tokenize(t.ctx, &workerpb.TokenizeRequest{Fingerprint: random(31), Text: "a"})
			return err
		}),
		illegal("fingerprint", "text.detokenize-33-bytes", func(t *T) error {
			_, err := t.head().Text.Detokenize(t.ctx, &workerpb.DetokenizeRequest{Fingerprint: random(33), Tokens: []uint32{1}})
			return err
		}),
	}
}
