package session

import (
	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// flow is who may still send how much.
type flow struct {
	in         credit // from the upstream to here
	out        credit // from here to the next hop
	receive    credit // responses to the driver; steps counts Token messages
	stepTokens uint32
	frameBytes uint32
}

// credit is room in steps and bytes.
type credit struct{ steps, bytes int64 }

func newFlow(o *workerpb.Opened, below *workerpb.Opened, receive *workerpb.ReceiveWindow) flow {
	return flow{
		in:         credit{int64(o.GetWindow().GetSteps()), int64(o.GetWindow().GetBytes())},
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
	c.up(&workerpb.SessionResponse{Kind: &workerpb.SessionResponse_Credit{
		Credit: &workerpb.Credit{Steps: proto.Uint32(1), Bytes: proto.Uint64(s.size)},
	}})
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
	c.data = append(c.data, data...)
	return true
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
