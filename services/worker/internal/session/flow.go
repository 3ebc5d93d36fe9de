package session

import (
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// flow is who may still send how much.
type flow struct {
	in         credit // from the upstream to here
	out        credit // from here to the next hop
	receive    credit // responses to the driver; steps counts Token messages
	window     credit // what the upstream was granted in all
	room       int64  // payload that may wait to be sent to one neighbour
	up, down   int64  // how much more of it may wait for the upstream, and for the next hop
	stepTokens uint32
	frameBytes uint32
}

// credit is room in steps and bytes.
type credit struct{ steps, bytes int64 }

func newFlow(o *workerpb.Opened, below *workerpb.Opened, receive *workerpb.ReceiveWindow, room Room) flow {
	window := credit{int64(o.GetWindow().GetSteps()), int64(o.GetWindow().GetBytes())}
	return flow{
		in: window, window: window, room: int64(room.Outgoing), up: int64(room.Outgoing), down: int64(room.Outgoing),
		out:        credit{int64(below.GetWindow().GetSteps()), int64(below.GetWindow().GetBytes())},
		receive:    credit{int64(receive.GetTokens()), int64(min(receive.GetBytes(), 1<<62))},
		stepTokens: o.GetMaxStepTokens(), frameBytes: o.GetFrameBytes(),
	}
}

func (c *credit) has(steps, bytes int64) bool { return c.steps >= steps && c.bytes >= bytes }

func (c *credit) take(steps, bytes int64) { c.steps, c.bytes = c.steps-steps, c.bytes-bytes }

// give adds room; sums stay far from overflow.
func (c *credit) give(steps, bytes uint64) {
	const most = 1 << 62
	c.steps = min(c.steps, most-int64(min(steps, most))) + int64(min(steps, most))
	c.bytes = min(c.bytes, most-int64(min(bytes, most))) + int64(min(bytes, most))
}

// refund gives a step's credit back to the upstream, once: its input buffer is free.
func (c *Core) refund(s *step) {
	if s.refunded {
		return
	}
	s.refunded = true
	s.data = nil
	c.flow.in.give(1, s.size)
	c.credit(1, s.size)
}

func (c *Core) credit(steps uint32, bytes uint64) {
	c.up(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Credit{
		Credit: &workerpb.Credit{Steps: proto.Uint32(steps), Bytes: proto.Uint64(bytes)},
	}})
}

// grow widens the window twofold behind a step that ran and had used it up: with the step in hand its sender could not have
// sent another one like it. Bytes are the worker's to grant; see Widened.
func (c *Core) grow(s *step) {
	limits, window := c.hop.Limits, &c.flow.window
	if s.tightSteps {
		if more := min(window.steps, int64(WindowSteps(limits.MaxWindowSteps, c.opened.GetAbility()))-window.steps); more > 0 {
			window.steps += more
			c.flow.in.give(uint64(more), 0)
			c.credit(uint32(more), 0)
		}
	}
	if s.tightBytes {
		if more := min(window.bytes, int64(limits.MaxWindowBytes)-window.bytes); more > 0 {
			c.emit(Widen{Bytes: uint64(more)})
		}
	}
}

// Widened grants the upstream bytes that a Widen asked for, as many as there were.
func (c *Core) Widened(now time.Time, bytes uint64) []Effect {
	c.begin(now)
	if bytes > 0 {
		c.flow.window.bytes += int64(bytes)
		c.flow.in.give(0, bytes)
		c.credit(0, bytes)
	}
	return c.finish()
}

// PayloadUp is the bytes of a response that stand in the room for answers.
func PayloadUp(m *workerpb.SessionResponse) uint64 {
	switch kind := m.GetKind().(type) {
	case *workerpb.SessionResponse_Frame:
		return uint64(len(kind.Frame.GetData()))
	case *workerpb.SessionResponse_StepResult:
		return uint64(len(payloadOf(kind.StepResult.GetOutput()).GetData()))
	}
	return 0
}

// PayloadDown is the bytes of a request that stand in the room for what goes to the next hop.
func PayloadDown(m *workerpb.SessionRequest) uint64 {
	switch kind := m.GetKind().(type) {
	case *workerpb.SessionRequest_Frame:
		return uint64(len(kind.Frame.GetData()))
	case *workerpb.SessionRequest_Step:
		return uint64(len(kind.Step.GetBoundary().GetData()))
	}
	return 0
}

// SentUp says that payload of so many bytes is on its way to the upstream.
func (c *Core) SentUp(now time.Time, bytes uint64) []Effect {
	c.begin(now)
	c.flow.up = min(c.flow.up+int64(bytes), c.flow.room)
	return c.finish()
}

// SentDown is SentUp for the next hop.
func (c *Core) SentDown(now time.Time, bytes uint64) []Effect {
	c.begin(now)
	c.flow.down = min(c.flow.down+int64(bytes), c.flow.room)
	return c.finish()
}

// freeRoom gives back what was set aside for the answer to a step and is not on its way.
func (c *Core) freeRoom(s *step) {
	c.flow.up = min(c.flow.up+max(s.reserved.bytes-int64(s.sent), 0), c.flow.room)
}

// Buffered is the boundaries that came and are not used up yet, bytes.
func (c *Core) Buffered() (n uint64) {
	for _, s := range c.steps.open {
		n += uint64(cap(s.data)) + s.frames.held()
		if s.run != nil && s.run.next != nil {
			n += uint64(cap(s.run.next.data)) + s.run.next.frame.held()
		}
	}
	return n
}

// collector gathers a payload that comes in frames. Its buffer grows as bytes arrive.
type collector struct {
	size  uint64
	frame uint64
	index uint32
	data  []byte
}

func newCollector(size uint64, frame uint32) *collector {
	return &collector{size: size, frame: uint64(frame)}
}

// add takes the next frame; it says whether the frame is the one that is due.
func (c *collector) add(index uint32, data []byte) bool {
	left := c.size - uint64(len(c.data))
	if index != c.index || uint64(len(data)) != min(left, c.frame) || left == 0 {
		return false
	}
	c.index++
	if need := len(c.data) + len(data); need > cap(c.data) { // twice as much as came, never more than is due
		grown := make([]byte, len(c.data), min(c.size, uint64(2*need)))
		copy(grown, c.data)
		c.data = grown
	}
	c.data = append(c.data, data...)
	return true
}

// held is the memory that the frames take.
func (c *collector) held() uint64 {
	if c == nil {
		return 0
	}
	return uint64(cap(c.data))
}

func (c *collector) whole() bool { return uint64(len(c.data)) == c.size }

// framed splits a payload that is larger than a frame; it returns nothing for one that is not.
func framed(step uint64, data []byte, frame uint32) []*workerpb.Frame {
	if len(data) <= int(frame) {
		return nil
	}
	var frames []*workerpb.Frame
	for i := uint32(0); len(data) > 0; i++ {
		n := min(len(data), int(frame))
		frames = append(frames, &workerpb.Frame{StepId: step, Index: proto.Uint32(i), Data: data[:n]})
		data = data[n:]
	}
	return frames
}
