package session_test

import (
	"encoding/binary"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/fake"
)

// FuzzUpstream sends whatever bytes say to an open session of two hops. Nothing may panic, no transition may be impossible,
// no step may get two terminal replies, and a step that was taken gets one while the session lives.
func FuzzUpstream(f *testing.F) {
	for _, seed := range [][]*workerpb.SessionRequest{
		{prefill(1, 0, 0, 10, 11), generate(2, 1, 2, 5, 12), cancel(2, 2, false), truncate(3, 2, 2, 1)},
		{prefill(1, 0, 0, 10, 11), prefill(2, 1, 2, 12), cancel(1, 2, true), closing()},
		{decode(1, 0, 0, workerpb.Want_WANT_LOGITS_ALL, 10, 11), decode(2, 1, 2, workerpb.Want_WANT_SAMPLE, 10), credit()},
		{{Kind: &workerpb.SessionRequest_Frame{Frame: &workerpb.Frame{StepId: 1, Index: proto.Uint32(0), Data: []byte{1}}}}},
		{{Kind: &workerpb.SessionRequest_Iteration{Iteration: &workerpb.Iteration{StepId: 1, Index: proto.Uint32(0), Token: proto.Uint32(1)}}}},
	} {
		var script []byte
		for _, m := range seed {
			raw, err := proto.Marshal(m)
			if err != nil {
				f.Fatal(err)
			}
			script = append(binary.BigEndian.AppendUint16(script, uint16(len(raw))), raw...)
		}
		f.Add(script, uint8(3))
	}
	f.Fuzz(func(t *testing.T, script []byte, pace uint8) {
		w := newWorld(t, fake.Default(), 2)
		w.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: w.openMessage(1)}})
		w.settle()
		for len(script) >= 2 {
			size := min(int(binary.BigEndian.Uint16(script)), len(script)-2)
			m := &workerpb.SessionRequest{}
			if proto.Unmarshal(script[2:2+size], m) == nil && m.GetOpen() == nil {
				w.send(m)
			}
			script = script[2+size:]
			for range pace % 8 {
				if all := w.moves(); len(all) > 0 {
					all[int(pace)%len(all)].do()
				}
			}
		}
		w.settle()
		w.tick(time.Hour) // whatever waits for time has its end
		w.settle()
		replies := map[uint64]int{}
		for _, m := range w.got {
			replies[m.GetStepResult().GetStepId()]++
			replies[m.GetStepFailed().GetStepId()]++
		}
		delete(replies, 0)
		for id, n := range replies {
			if n != 1 {
				t.Errorf("step %d got %d terminal replies", id, n)
			}
		}
		for _, n := range w.hops {
			if n.core.Impossibles() != 0 {
				t.Errorf("hop %d: %d impossible transitions", n.index, n.core.Impossibles())
			}
			if s := n.core.State(); s == tables.SessionUnwinding || s == tables.SessionClosing || s == tables.SessionOpening {
				t.Errorf("hop %d stays %v", n.index, s)
			}
		}
	})
}
