package session

import (
	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// result takes a StepResult. The caller holds mu.
func (s *Session) result(r *workerpb.StepResult) *fault.Error {
	p, ok := s.steps[r.GetStepId()]
	if !ok {
		return s.broken("it answered step %d, which waits for no answer", r.GetStepId())
	}
	if f := s.advance(p, r); f != nil {
		return f
	}
	if f := s.checkOutput(p, r.GetOutput().GetLogits()); f != nil {
		return f
	}
	delete(s.steps, p.id)
	s.applied = p.id
	p.end(r, nil)
	return nil
}

// advance makes the driver's chain what the step left, and compares. The caller holds mu.
func (s *Session) advance(p *step, r *workerpb.StepResult) *fault.Error {
	length := r.GetCache().GetLength()
	if p.start != s.chain.Len() {
		return s.broken("it answered step %d before the steps that it builds on", p.id)
	}
	if len(p.tokens) == 0 { // Truncate
		s.truncate(length)
	} else {
		evaluated := p.evaluated()
		n := int64(length) - int64(p.start)
		if n < int64(len(p.tokens)) || n > int64(len(evaluated)) {
			return s.broken("step %d left %d tokens after %d", p.id, length, p.start)
		}
		s.append(evaluated[:n]...)
	}
	hash, _ := s.chain.At(length)
	if s.chain.Len() != length || string(r.GetCache().GetChainHash()) != string(hash[:]) {
		return s.broken("after step %d it holds other tokens than this driver sent", p.id)
	}
	return nil
}

// checkOutput compares framed logits with what the result announces. The caller holds mu.
func (s *Session) checkOutput(p *step, logits *workerpb.Boundary) *fault.Error {
	size := 4 * uint64(logits.GetRows()) * uint64(logits.GetWidth())
	if got := uint64(len(logits.GetData()) + len(p.frames)); logits != nil && (size > p.most || got != size) {
		return s.broken("step %d has %d bytes of logits, and %d × %d were announced", p.id, got, logits.GetRows(), logits.GetWidth())
	}
	if n := len(logits.GetData()); n > 0 {
		s.grant(0, uint64(n))
	}
	return nil
}

// failed takes a StepFailed. The caller holds mu.
func (s *Session) failed(r *workerpb.StepFailed) *fault.Error {
	p, ok := s.steps[r.GetStepId()]
	if !ok {
		return s.broken("it answered step %d, which waits for no answer", r.GetStepId())
	}
	f := fault.FromProto(r.GetError())
	if f == nil {
		return s.broken("step %d failed without an error", p.id)
	}
	delete(s.steps, p.id)
	p.end(nil, f)
	return nil
}

// frame takes a piece of a step's output. The caller holds mu.
func (s *Session) frame(m *workerpb.Frame) *fault.Error {
	p, ok := s.steps[m.GetStepId()]
	if !ok || uint64(len(p.frames)+len(m.GetData())) > p.most {
		return s.broken("it sent output of step %d that nobody asked for", m.GetStepId())
	}
	p.frames = append(p.frames, m.GetData()...)
	s.grant(0, uint64(len(m.GetData())))
	return nil
}

// token takes one sampled token. The caller holds mu.
func (s *Session) token(m *workerpb.Token) *fault.Error {
	p, ok := s.steps[m.GetStepId()]
	if !ok {
		return s.broken("it sent a token of step %d, which waits for no answer", m.GetStepId())
	}
	t := tokenOf(m)
	if p.run == nil {
		if t.Index != 0 || p.sample != nil {
			return s.broken("it sent token %d of step %d, which samples once", t.Index, p.id)
		}
		p.sample = &t
		s.grant(1, 0)
		return nil
	}
	switch r := p.run; {
	case t.Index != uint32(len(r.ids)):
		return s.broken("it sent token %d of step %d where %d was due", t.Index, p.id, len(r.ids))
	case len(r.waiting) >= int(s.options.ReceiveTokens):
		return s.broken("it sent more tokens than this driver gave room for")
	default:
		r.ids = append(r.ids, t.ID)
		r.waiting = append(r.waiting, t)
	}
	return nil
}

// grant gives room for responses back, if the sender's queue has a place; what it has not is granted with the next. The
// caller holds mu.
func (s *Session) grant(tokens uint32, bytes uint64) {
	s.owedTokens, s.owedBytes = s.owedTokens+tokens, s.owedBytes+bytes
	if s.owedTokens < s.options.ReceiveTokens/2+1 && s.owedBytes < s.options.ReceiveBytes/2+1 {
		return
	}
	m := &workerpb.ReceiveCredit{Tokens: proto.Uint32(s.owedTokens), Bytes: proto.Uint64(s.owedBytes)}
	select {
	case s.out <- &workerpb.SessionRequest{Kind: &workerpb.SessionRequest_ReceiveCredit{ReceiveCredit: m}}:
		s.owedTokens, s.owedBytes = 0, 0
	default:
	}
}
