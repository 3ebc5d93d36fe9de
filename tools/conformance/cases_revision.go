package conformance

import (
	"bytes"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

const unspoken = workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_REVISION

// inWords checks that a response holds no enum value, at any depth, that a revision does not have. Every response of every
// case is looked at.
func (t *T) inWords(m proto.Message, revision uint32) {
	strangeValues(m.ProtoReflect(), "", revision, func(at, what string) {
		t.Errorf("%s.%s is %s, which revision %d does not have", m.ProtoReflect().Descriptor().Name(), at, what, revision)
	})
}

func strangeValues(m protoreflect.Message, at string, revision uint32, found func(at, what string)) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		here := at + string(f.Name())
		switch {
		case f.Message() != nil && f.IsList():
			for i := range v.List().Len() {
				strangeValues(v.List().Get(i).Message(), fmt.Sprintf("%s[%d].", here, i), revision, found)
			}
		case f.Message() != nil:
			strangeValues(v.Message(), here+".", revision, found)
		case f.Enum() != nil && !f.IsList():
			value := f.Enum().Values().ByNumber(v.Enum())
			switch {
			case value == nil:
				found(here, fmt.Sprint(v.Enum()))
			case since(value.FullName()) > revision:
				found(here, string(value.Name()))
			}
		}
		return true
	})
}

// since is the revision that added an element.
func since(name protoreflect.FullName) uint32 {
	for _, a := range tables.Additions() {
		if a.Name == name {
			return a.Since
		}
	}
	return 1
}

// revisionCases are about what is spoken, and in whose words.
func revisionCases() []Case {
	return []Case{
		{ID: "revision.each", Clauses: []string{"VER-4", "VER-7"},
			Says: "Each revision that the route speaks is spoken where it is the greatest that the driver names, and nothing that comes is younger.", Run: eachRevision},
		{ID: "revision.words-of-calls", Clauses: []string{"VER-7"}, Says: "Calls that name no revision are answered in the words of the worker's least.", Run: wordsOfCalls},
		{ID: "revision.judged-first", Clauses: []string{"VER-3"}, Says: "An Open of revisions that the worker does not speak is UNSUPPORTED_REVISION whatever else it holds.", Run: func(t *T) {
			t.refuse(unspoken, func(o *workerpb.Open) {
				n := t.head().Is.GetRevisions().GetMax() + 1
				o.Revisions = &workerpb.RevisionRange{Min: n, Max: n}
				o.Egress = 77
				stranger(o.Expect)
			})
		}},
	}
}

// revisionPeerCases are about what is offered to a next hop, and what is taken from it.
func revisionPeerCases() []Case {
	return []Case{
		{ID: "revision.narrowed", Clauses: []string{"VER-4"}, Says: "The next hop is offered what the driver and this hop speak, and no more.", Run: func(t *T) {
			_, b, _ := t.dialled(func(o *workerpb.Open) { o.Revisions.Max = 1 << 31 })
			is := t.head().Is.GetRevisions()
			if got := b.open.GetRevisions(); got.GetMin() != max(1, is.GetMin()) || got.GetMax() != is.GetMax() {
				t.Errorf("the next hop was offered %v of %v", got, is)
			}
		}},
		{ID: "revision.not-offered", Clauses: []string{"VER-4"}, Says: "A next hop that opens on a revision that it was not offered is not opened upon, and is named.", Run: func(t *T) {
			l, b, _ := t.dialled()
			answer := b.opened()
			answer.Revision = b.open.GetRevisions().GetMax() + 1
			b.send(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Opened{Opened: answer}})
			e := t.want(l.refusal(), workerpb.ErrorCode_ERROR_CODE_INTERNAL)
			if e.GetSubject().Index == nil || e.GetSubject().GetIndex() != 1 {
				t.Errorf("the subject is %v", e.GetSubject())
			}
		}},
		{ID: "revision.refused-below", Clauses: []string{"VER-3", "ERR-3"}, Says: "Where a later hop speaks none of what is left, its ranges and its place come up.", Run: func(t *T) {
			l, b, _ := t.dialled()
			e := peerError(unspoken, workerpb.ErrorScope_ERROR_SCOPE_SESSION, workerpb.Recovery_RECOVERY_FIX_REQUEST)
			ranges := &workerpb.VersionDetail{Theirs: b.open.GetRevisions(), Ours: &workerpb.RevisionRange{Min: 7, Max: 9}}
			e.Detail = &workerpb.ErrorDetail{Kind: &workerpb.ErrorDetail_Version{Version: ranges}}
			b.refuse(e)
			got := t.want(l.refusal(), unspoken)
			if !proto.Equal(got.GetDetail().GetVersion(), ranges) || got.GetSubject().GetIndex() != 1 {
				t.Errorf("%v came of %v", got, e)
			}
		}},
	}
}

// eachRevision uses a session of each revision in all its kinds of answers; the driver checks every one of them.
func eachRevision(t *T) {
	least, most := uint32(1), tables.MaxRevision
	for _, h := range t.Hops {
		least, most = max(least, h.Is.GetRevisions().GetMin()), min(most, h.Is.GetRevisions().GetMax())
	}
	if most < least {
		t.Fatalf("the route speaks no revision that this program knows")
	}
	for revision := least; revision <= most; revision++ {
		d := t.openDriver(func(o *workerpb.Open) { o.Revisions.Max = revision })
		if d.opened.GetRevision() != revision {
			t.Errorf("revision %d is spoken, %d is due", d.opened.GetRevision(), revision)
		}
		d.usable()
		d.run(3, t.ids(1, 5))
		d.failed(d.give(d.step(prefill(t.vocab()))), workerpb.ErrorCode_ERROR_CODE_TOKEN_OUT_OF_RANGE)
		d.failed(d.give(d.step(prefill(t.ids(2, 7)...), func(s *workerpb.Step) { s.ExpectCache.Length = proto.Uint32(99) })), workerpb.ErrorCode_ERROR_CODE_CACHE_MISMATCH)
		d.finish()
		t.refuse(workerpb.ErrorCode_ERROR_CODE_ROUTE_INVALID, func(o *workerpb.Open) {
			o.Revisions.Max = revision
			o.Route = append(o.Route, &workerpb.RouteHop{Address: "192.0.2.1:1", Layers: &workerpb.LayerRange{First: proto.Uint32(0), End: 1}})
		})
	}
}

// wordsOfCalls asks every call that has an answer.
func wordsOfCalls(t *T) {
	h := t.head()
	least := h.Is.GetRevisions().GetMin()
	check := func(call string, m proto.Message, err error) {
		if err != nil {
			t.Errorf("%s failed: %v", call, err)
			return
		}
		t.inWords(m, least)
	}
	capability, err := h.Worker.GetCapability(t.ctx, &workerpb.GetCapabilityRequest{})
	check("GetCapability", capability, err)
	health, err := h.Worker.GetHealth(t.ctx, &workerpb.GetHealthRequest{})
	check("GetHealth", health, err)
	metrics, err := h.Worker.GetMetrics(t.ctx, &workerpb.GetMetricsRequest{})
	check("GetMetrics", metrics, err)
	watch, err := h.Worker.WatchHealth(t.ctx, &workerpb.WatchHealthRequest{})
	if err != nil {
		t.Fatalf("WatchHealth failed: %v", err)
	}
	health2, err := watch.Recv()
	check("WatchHealth", health2, err)
	_, err = h.Text.Tokenize(t.ctx, &workerpb.TokenizeRequest{Fingerprint: bytes.Repeat([]byte{1}, 32), Text: "a"})
	t.want(t.errorOf(err), workerpb.ErrorCode_ERROR_CODE_SHARD_MISMATCH)
	_, err = h.Shard.Drain(t.ctx, &workerpb.DrainRequest{Budget: durationpb.New(-1)})
	t.want(t.errorOf(err), malformed)
}
