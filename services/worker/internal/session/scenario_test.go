package session_test

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/fake"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/session"
)

var rewrite = flag.Bool("rewrite", false, "write the scenarios anew from what the code does; look at the difference")

// Each file of testdata is commands, each followed by what it leads to, message by message. A line `> command` is the
// driver's or the world's; the lines under it are what happened until all was at rest, or with a trailing `;` nothing moves
// yet. D is the driver, 0, 1, 2 the hops.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 8 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := replay(t, string(want))
			if *rewrite {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%s is not what happens; if that is meant, run go test ./internal/session -run Scenarios -rewrite\n%s",
					file, difference(string(want), string(got)))
			}
		})
	}
}

// difference is the first lines that differ.
func difference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range w {
		if i >= len(g) || w[i] != g[i] {
			return fmt.Sprintf("line %d\nwant %s\ngot  %s", i+1, w[i], strings.Join(g[min(i, len(g)):min(i+3, len(g))], "\n     "))
		}
	}
	return "there is more than the file says:\n" + strings.Join(g[len(w):], "\n")
}

// stage is a scenario that plays.
type stage struct {
	*world
	t        *testing.T
	out      bytes.Buffer
	truncate engine.TruncateAbility // of the model; 0: any
	marks    uint32                 // of the model, where it takes any
}

var endings = map[string]tables.SessionEvent{
	"cancel": tables.SessionEventCancelSession, "release": tables.SessionEventReleaseSession,
}

// replay runs the commands of a scenario and returns them with what happens.
func replay(t *testing.T, script string) []byte {
	s := &stage{t: t}
	for line := range strings.Lines(script) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "#"), line == "":
			fmt.Fprintln(&s.out, line)
		case strings.HasPrefix(line, "> "):
			fmt.Fprintln(&s.out, line)
			command, hold := strings.CutSuffix(strings.TrimPrefix(line, "> "), ";")
			s.command(strings.Fields(command))
			if !hold && s.world != nil {
				s.settle()
			}
		}
	}
	return s.out.Bytes()
}

// command does one line.
func (s *stage) command(words []string) {
	n := make([]uint32, len(words))
	for i, w := range words {
		v, _ := strconv.ParseUint(w, 10, 32)
		n[i] = uint32(v)
	}
	switch words[0] {
	case "model": // how its caches go back, and how many marks they take
		s.truncate = map[string]engine.TruncateAbility{"none": engine.TruncateNone, "window": engine.TruncateWindow}[words[1]]
		s.marks = 3
		if len(n) > 2 {
			s.marks = n[2]
		}
	case "route":
		s.route(n[1:])
	case "open":
		s.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: s.openMessage(uint64(n[1]))}})
	case "hub":
		o := s.openMessage(uint64(n[1]))
		o.Egress, o.Route = workerpb.Egress_EGRESS_RETURN, nil
		s.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: o}})
	case "narrow": // an open with room for so many tokens only
		o := s.openMessage(1)
		o.Receive.Tokens = proto.Uint32(n[1])
		s.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: o}})
	case "frames": // so small that a boundary does not fit
		for _, hop := range s.hops {
			hop.hop.Limits.FrameBytes = n[1]
		}
	case "prefill":
		s.send(prefill(uint64(n[1]), uint64(n[2]), n[3], n[4:]...))
	case "generate":
		s.send(generate(uint64(n[1]), uint64(n[2]), n[3], n[4], n[5:]...))
	case "decode":
		s.send(decode(uint64(n[1]), uint64(n[2]), n[3], workerpb.Want(workerpb.Want_value["WANT_"+words[4]]), n[5:]...))
	case "truncate":
		s.send(truncate(uint64(n[1]), uint64(n[2]), n[3], n[4]))
	case "cancel":
		s.send(cancel(uint64(n[1]), uint64(n[2]), words[3] == "undo"))
	case "room":
		s.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_ReceiveCredit{ReceiveCredit: &workerpb.ReceiveCredit{Tokens: proto.Uint32(n[1])}}})
	case "close":
		s.send(closing())
	case "ring": // on, before open
		s.hops[0].hop.Ring = "w0:7000"
	case "forge": // what the ring brings next is another id
		if len(s.rung) > 0 {
			s.rung[0] = proto.CloneOf(s.rung[0])
			s.rung[0].Id = proto.Uint32(n[1])
		}
	case "wait":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			s.t.Fatal(err)
		}
		s.tick(d)
	case "moves":
		for range n[1] {
			if all := s.moves(); len(all) > 0 {
				all[0].do()
			}
		}
	case "move": // one thing that can happen, and nothing else
		s.move(words[1], int(n[2]), strings.Join(words[3:], " "))
	case "settle": // until all is at rest
	case "equal": // every hop is open, and all hold the same tokens
		for _, hop := range s.hops {
			if hop.core.State() != tables.SessionActive || !slices.Equal(hop.held, s.hops[0].held) {
				s.t.Errorf("hop %d is %v and holds %v, hop 0 %v", hop.index, hop.core.State(), hop.held, s.hops[0].held)
			}
		}
		fmt.Fprintf(&s.out, "all hold %v\n", s.hops[0].held)
	case "deliver": // the driver's next messages, before anything else moves
		for range n[1] {
			s.deliverDown(s.hops[0], 0)
		}
	case "freeze": // a hop that neither computes nor answers
		s.hops[n[1]].frozen = true
	case "fail":
		s.hops[n[1]].fails = engine.Code(words[2])
	case "poison": // its next result holds NaN, and its engine does not notice
		s.hops[n[1]].poisoned = true
	case "cut":
		s.cut(s.hops[n[1]])
	case "lose": // its engine, with every cache
		s.lose(s.hops[n[1]])
	case "drain":
		s.apply(s.hops[n[1]], s.hops[n[1]].core.Draining(s.now, time.Minute))
	case "deadline":
		s.apply(s.hops[n[1]], s.hops[n[1]].core.DrainDeadline(s.now))
	case "end":
		hop := s.hops[n[1]]
		s.apply(hop, hop.core.End(s.now, endings[words[2]]))
	case "state":
		for _, hop := range s.hops {
			length, reserved := hop.core.Cached()
			fmt.Fprintf(&s.out, "%d %v holds %d of %d\n", hop.index, hop.core.State(), length, reserved)
		}
	default:
		s.t.Fatalf("there is no command %q", words[0])
	}
}

// move lets the engine of a hop end what it does, or brings the first message that begins with text over the link into a hop:
// down that message alone, up all those before it too. If there is none, nothing happens.
func (s *stage) move(what string, hop int, text string) {
	n := s.hops[hop]
	switch what {
	case "ring":
		if len(s.rung) > 0 {
			s.deliverRing()
		}
	case "engine":
		if len(n.work) > 0 {
			s.compute(n)
		}
	case "books": // whatever it does to open a session, but no step
		for len(n.work) > 0 && n.work[0].Kind != session.WorkStep {
			s.compute(n)
		}
	case "end": // the hop before learns that the link into this one is over
		if n.broken != nil && n.dialed {
			s.linkEnds(n)
		}
	case "down":
		at := slices.IndexFunc(n.down, func(m *workerpb.SessionRequest) bool { return strings.HasPrefix(describe(m), text) })
		if at >= 0 {
			s.deliverDown(n, at)
		}
	case "up":
		at := slices.IndexFunc(n.up, func(m *workerpb.SessionResponse) bool { return strings.HasPrefix(describe(m), text) })
		for range at + 1 {
			s.deliverUp(n)
		}
	default:
		s.t.Fatalf("there is no move %q", what)
	}
}

// route makes the hops; their layers are cut where the numbers say. A word `end` and a number make the model end there.
func (s *stage) route(cuts []uint32) {
	model := fake.Default()
	model.EndAt = engine.Pos(cuts[0])
	model.Truncate = cmp.Or(s.truncate, model.Truncate)
	switch model.Truncate {
	case engine.TruncateWindow:
		model.Window, model.Copy, model.Marks = 4, engine.CopyWhole, s.marks
	case engine.TruncateNone:
		model.Copy, model.Marks = engine.CopyWhole, s.marks
	}
	s.world = newWorld(s.t, model, cuts[1:]...)
	s.log, s.express = &s.out, true
}

// lose loses the engine of a hop: what it was doing has no end, and all that it held is gone.
func (s *stage) lose(n *node) {
	if err := n.engine.Release(s.t.Context(), n.id); err != nil {
		s.t.Fatal(err)
	}
	n.work, n.held, n.stop = nil, nil, false
	s.apply(n, n.core.EngineLost(s.now, fault.New(workerpb.ErrorCode_ERROR_CODE_ENGINE_FAULT, "made up")))
}

// cut breaks the link into a hop: both ends learn it, what was under way is lost.
func (s *stage) cut(n *node) {
	n.down, n.up = nil, nil
	if n.index > 0 {
		n.broken = errors.New("cut")
	}
	if n.attachedTo() {
		s.apply(n, n.core.UpstreamEnded(s.now))
	}
}
