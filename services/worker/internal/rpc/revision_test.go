package rpc_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
)

// span is a range of revisions.
type span struct{ min, max uint32 }

// spans are what a side of the matrix speaks: the old, the one that speaks both, and the new that has dropped the old.
var spans = []span{{1, 1}, {1, 2}, {2, 2}}

// agree is what all of a driver and hops speak, by trying each revision; hop is the first at which nothing is left, with what
// it was offered.
func agree(driver span, hops []span) (best uint32, hop int, offered span) {
	left := map[uint32]bool{}
	for r := driver.min; r <= driver.max; r++ {
		left[r] = true
	}
	bounds := func() (s span) {
		for r := uint32(9); r > 0; r-- {
			if left[r] {
				s.min, s.max = r, max(s.max, r)
			}
		}
		return s
	}
	for i, h := range hops {
		offered = bounds()
		for r := range left {
			if r < h.min || r > h.max {
				delete(left, r)
			}
		}
		if len(left) == 0 {
			return 0, i, offered
		}
	}
	return bounds().max, 0, span{}
}

// Every driver over every route of old and new hops: the greatest common revision is spoken, or the first hop with nothing in
// common is named with both ranges, and nothing stays of the opening.
func TestEveryMixOfRevisions(t *testing.T) {
	cut := map[int][][2]uint32{1: {{0, 4}}, 2: {{0, 2}, {2, 4}}, 3: {{0, 1}, {1, 3}, {3, 4}}}
	for n := 1; n <= 3; n++ {
		makes := make([][]*worker, n) // by place and by what is spoken
		for place, layers := range cut[n] {
			for _, s := range spans {
				makes[place] = append(makes[place], start(t, engine.LayerRange{First: layers[0], End: layers[1]},
					setting{sessions: 2, speaks: session.Revisions{Min: s.min, Max: s.max}}))
			}
		}
		mixes := 1
		for range n {
			mixes *= len(spans)
		}
		for mix := range mixes {
			var workers []*worker
			var hops []span
			for place, rest := 0, mix; place < n; place, rest = place+1, rest/len(spans) {
				workers = append(workers, makes[place][rest%len(spans)])
				hops = append(hops, spans[rest%len(spans)])
			}
			for _, driver := range spans {
				t.Run(fmt.Sprint(driver, hops), func(t *testing.T) { negotiate(t, driver, hops, workers) })
			}
		}
	}
}

func negotiate(t *testing.T, driver span, hops []span, workers []*worker) {
	best, hop, offered := agree(driver, hops)
	m := openOf(1, workers)
	m.GetOpen().Revisions = &workerpb.RevisionRange{Min: driver.min, Max: driver.max}
	d := dialTo(t, workers[0])
	defer d.cancel()
	d.send(m)
	if best > 0 {
		if got := d.receive().GetOpened().GetRevision(); got != best {
			t.Errorf("revision %d is spoken, want %d", got, best)
		}
		d.send(step(1, 0, 0, prompt(40, 41)))
		if _, _, failed := d.answer(1); failed != nil {
			t.Errorf("a step failed: %v", failed)
		}
		d.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Close{Close: &workerpb.Close{}}})
		if _, err := d.end(); err != nil {
			t.Error(err)
		}
		return
	}
	_, err := d.end()
	is(t, err, workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_REVISION)
	v := err.Detail.GetVersion()
	theirs, ours := span{v.GetTheirs().GetMin(), v.GetTheirs().GetMax()}, span{v.GetOurs().GetMin(), v.GetOurs().GetMax()}
	if theirs != offered || ours != hops[hop] || err.Subject.GetIndex() != uint32(hop) || err.Origin.GetIndex() != uint32(hop) {
		t.Errorf("hop %v was offered %v and speaks %v; want hop %d, %v, %v", err.Subject, theirs, ours, hop, offered, hops[hop])
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	for i, w := range workers {
		if err := w.dir.Empty(ctx); err != nil {
			t.Errorf("a session stays at hop %d: %v", i, err)
		}
	}
}

// young is a contract of two revisions, of which the second added some of what there is: a worker that knows it is the new side,
// and a caller who may not be told of it is the old one.
var young = []tables.Addition{
	{Name: "dgr.worker.v1.ERROR_CODE_TOKEN_OUT_OF_RANGE", Since: 2, Instead: "ERROR_CODE_MALFORMED"},
	{Name: "dgr.worker.v1.ERROR_CODE_ROUTE_INVALID", Since: 2, Instead: "ERROR_CODE_SHARD_MISMATCH"},
	{Name: "dgr.worker.v1.ERROR_CODE_NO_TEMPLATE", Since: 2, Instead: "ERROR_CODE_TOKEN_OUT_OF_RANGE"},
	{Name: "dgr.worker.v1.FINISH_LENGTH", Since: 2, Instead: "FINISH_STOP_TOKEN"},
	{Name: "dgr.worker.v1.FEATURE_STATUS_RESERVED", Since: 2, Instead: "FEATURE_STATUS_OFF"},
	{Name: "dgr.worker.v1.SHARD_STATE_READY", Since: 2, Instead: "SHARD_STATE_LOADING"},
	{Name: "dgr.worker.v1.EGRESS_RETURN", Since: 2, Instead: "EGRESS_FORWARD"},
	{Name: "dgr.worker.v1.Open.on_behalf_of", Since: 2},
	{Name: "dgr.worker.v1.Generate.logprobs", Since: 2},
	{Name: "dgr.worker.v1.Sampling.top_k", Since: 2},
}

func bilingual(t *testing.T, cuts ...uint32) []*worker {
	return route(t, setting{sessions: 2, speaks: session.Revisions{Min: 1, Max: 2, Added: young}}, cuts...)
}

// A caller of an older revision is told nothing that it does not know, by any hop; recovery and scope stay.
func TestOldCallersAreToldOldWords(t *testing.T) {
	for _, cuts := range [][]uint32{{}, {1, 3}} {
		workers := bilingual(t, cuts...)
		for _, c := range []struct {
			revision uint32
			code     workerpb.ErrorCode
			finish   workerpb.Finish
			route    workerpb.ErrorCode
		}{
			{1, workerpb.ErrorCode_ERROR_CODE_MALFORMED, workerpb.Finish_FINISH_STOP_TOKEN, workerpb.ErrorCode_ERROR_CODE_SHARD_MISMATCH},
			{2, workerpb.ErrorCode_ERROR_CODE_TOKEN_OUT_OF_RANGE, workerpb.Finish_FINISH_LENGTH, workerpb.ErrorCode_ERROR_CODE_ROUTE_INVALID},
		} {
			m := openOf(byte(c.revision), workers)
			m.GetOpen().Revisions = &workerpb.RevisionRange{Min: 1, Max: c.revision}
			d := dialTo(t, workers[0])
			d.send(m)
			if got := d.receive().GetOpened().GetRevision(); got != c.revision {
				t.Fatalf("revision %d is spoken", got)
			}
			d.send(step(1, 0, 0, prompt(1<<30)))
			_, _, failed := d.answer(1)
			e := failed.GetError()
			row := tables.ErrorByCode(workerpb.ErrorCode_ERROR_CODE_TOKEN_OUT_OF_RANGE)
			if e.GetCode() != c.code || e.GetRecovery() != row.Recovery || e.GetScope() != row.Scope || e.GetDetail().GetField() == nil {
				t.Errorf("revision %d is told %v", c.revision, e)
			}
			d.send(step(2, 0, 0, run(3, 44)))
			if _, result, _ := d.answer(2); result.GetFinish() != c.finish {
				t.Errorf("revision %d is told %v", c.revision, result.GetFinish())
			}
			d.cancel()

			m.GetOpen().SessionId[0], m.GetOpen().Egress, m.GetOpen().Route = 7, workerpb.Egress_EGRESS_FORWARD, []*workerpb.RouteHop{{Address: "127.0.0.1:1", Layers: layersOf(workers[0])}}
			d = dialTo(t, workers[0])
			d.send(m)
			_, err := d.end()
			is(t, err, c.route)
			if status.Code(err) != tables.ErrorByCode(c.route).GRPC {
				t.Errorf("%v came with status %v", err, status.Code(err))
			}
		}
	}
}

// Whoever names no revision is answered in the words of the least.
func TestCallsWithoutRevisionAreToldTheOldestWords(t *testing.T) {
	w := bilingual(t)[0]
	conn := connect(t, w)
	c, err := workerpb.NewWorkerServiceClient(conn).GetCapability(context.Background(), &workerpb.GetCapabilityRequest{})
	if err != nil || c.GetCapability().GetShard().GetState() != workerpb.ShardState_SHARD_STATE_LOADING || c.GetCapability().GetRevisions().GetMax() != 2 {
		t.Errorf("capability %v, %v", c, err)
	}
	for _, f := range c.GetCapability().GetFeatures() {
		if f.GetStatus() == workerpb.FeatureStatus_FEATURE_STATUS_RESERVED {
			t.Errorf("%v", f)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	watch, err := workerpb.NewWorkerServiceClient(conn).WatchHealth(ctx, &workerpb.WatchHealthRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if h, err := watch.Recv(); err != nil || h.GetHealth().GetState() != workerpb.ShardState_SHARD_STATE_LOADING || !h.GetHealth().GetReady() {
		t.Errorf("health %v, %v", h, err)
	}
	_, fingerprint, _ := w.shard.Info()
	// What stands for it is as young: the one that stands for that is told.
	_, err = workerpb.NewTextServiceClient(conn).RenderChat(ctx, &workerpb.RenderChatRequest{Fingerprint: fingerprint[:], MessagesJson: "[]"})
	is(t, fault.FromStatus(err), workerpb.ErrorCode_ERROR_CODE_MALFORMED)
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("the status is %v", status.Code(err))
	}
}

// What a revision does not have is unknown in its requests, also to a worker that knows it from a later one.
func TestOldRequestsHoldNothingYoung(t *testing.T) {
	workers := bilingual(t)
	for name, c := range map[string]struct {
		change func(*workerpb.Open)
		path   string
	}{
		"field of Open": {func(o *workerpb.Open) { o.OnBehalfOf = "x" }, "open.on_behalf_of"},
		"value of Open": {func(o *workerpb.Open) { o.Egress = workerpb.Egress_EGRESS_RETURN }, "open.egress"},
	} {
		// A range that begins at 1 is an Open of revision 1, however far it reaches.
		m := openOf(1, workers)
		m.GetOpen().Revisions = &workerpb.RevisionRange{Min: 1, Max: 2}
		c.change(m.GetOpen())
		d := dialTo(t, workers[0])
		d.send(m)
		_, err := d.end()
		is(t, err, workerpb.ErrorCode_ERROR_CODE_MALFORMED)
		if err.Detail.GetField().GetPath() != c.path {
			t.Errorf("%s: %v", name, err.Detail)
		}
	}
	for _, revision := range []uint32{1, 2} {
		m := openOf(byte(revision), workers)
		m.GetOpen().Revisions = &workerpb.RevisionRange{Min: 1, Max: revision}
		d := dialTo(t, workers[0])
		d.send(m)
		d.receive()
		k := run(1, 44)
		k.Sampling.TopK = proto.Uint32(1)
		d.send(step(1, 0, 0, k))
		_, result, failed := d.answer(1)
		if path := failed.GetError().GetDetail().GetField().GetPath(); revision == 1 && path != "step.generate.sampling.top_k" || revision == 2 && result == nil {
			t.Errorf("revision %d: %v, %v", revision, result, failed)
		}
		d.cancel()
	}
}

// An Open of revisions that this worker does not speak may hold what it does not know: the revisions are the answer.
func TestRevisionsAreJudgedBeforeWords(t *testing.T) {
	w := whole(t, setting{})
	m := openOf(1, []*worker{w})
	m.GetOpen().Revisions = &workerpb.RevisionRange{Min: 2, Max: 3}
	m.GetOpen().Egress = 77
	m.GetOpen().ProtoReflect().SetUnknown([]byte{0x98, 0xda, 0x09, 1})
	d := dialTo(t, w)
	d.send(m)
	_, err := d.end()
	is(t, err, workerpb.ErrorCode_ERROR_CODE_UNSUPPORTED_REVISION)
}
