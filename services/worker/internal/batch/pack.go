package batch

import (
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
)

const (
	decodeRows = 8  // the greatest step that counts as a decode
	leastChunk = 64 // rows; fewer use a processor badly however slow it is
	gaps       = 3  // a session that sent no decode for so many times its usual gap sends no more
	leastGap   = 100 * time.Millisecond

	quiet     = 32 // a call waits for more while decodes come in at less than this part of its own time
	mostQuiet = time.Millisecond
)

// turn is when a session last sent a decode, and how it travels.
type turn struct {
	last time.Time
	gap  time.Duration // between the last two
	hops int           // of its route, where this is the first of them; else 1
}

// took notes a decode that was submitted.
func (s *Scheduler) took(j *Job, now time.Time) {
	t := turn{last: now, hops: max(1, j.Hops)}
	if before, known := s.turns[j.Session]; known {
		t.gap = now.Sub(before.last)
	}
	s.turns[j.Session] = t
	j.since = now
}

// senders is how many sessions send decodes now, and how many hops the longest of their routes has. It forgets those that
// send no more.
func (s *Scheduler) senders(now time.Time) (active, hops int) {
	hops = 1
	for id, t := range s.turns {
		if now.Sub(t.last) > max(gaps*t.gap, leastGap) {
			delete(s.turns, id)
			continue
		}
		active++
		hops = max(hops, t.hops)
	}
	return active, hops
}

// share is how many decodes one call may hold, so that every hop of a route has a group of its own to work on: with all
// sessions in one group, every hop but one would wait.
func (s *Scheduler) share(now time.Time) int {
	active, hops := s.senders(now)
	if hops == 1 {
		return s.options.Tokens
	}
	return max(1, (active+hops-1)/hops)
}

// hold is until when the decodes that wait are held back, for others to go with them; zero is not at all. Each call costs,
// and decodes that went through the hop before in one call arrive one after another: so a call waits until nothing has come
// for a moment. And at the first of several hops a group that is less than its share waits for the rest of it, which is on
// another hop, for a call's time at most: once together they stay together.
func (s *Scheduler) hold(now time.Time) time.Time {
	waiting := len(s.decodes)
	active, hops := s.senders(now)
	if s.options.Deterministic || waiting == 0 || waiting >= active {
		return time.Time{}
	}
	one, _ := s.table.decode(waiting)
	until := s.decodes[waiting-1].since.Add(min(one/quiet, mostQuiet))
	if share := active / hops; hops > 1 && waiting < share {
		whole, _ := s.table.decode(share)
		until = s.decodes[0].since.Add(min(whole, s.options.Time))
	}
	if until.After(now) {
		return until
	}
	return time.Time{}
}

// pack takes the first jobs of a queue that fit one native call. Stopped ones go out on their own, without the engine.
func (s *Scheduler) pack(queue *[]*Job, prefill bool) []*Job {
	most := len(*queue)
	if !prefill && !s.options.Deterministic {
		most = s.table.group(min(most, s.share(time.Now())), s.options.Time)
	}
	rows, n := 0, 0
	for _, j := range *queue {
		alone := s.options.Deterministic || j.Alone || (*queue)[0].Alone
		if n > 0 && (alone || n == most || rows+len(j.Step.Tokens) > s.options.Tokens) {
			break
		}
		rows += len(j.Step.Tokens)
		n++
	}
	packed := (*queue)[:n:n]
	*queue = (*queue)[n:]
	if len(*queue) == 0 {
		*queue = nil
	}
	return packed
}

// Measured is Chunk where prefill has run and is measured, else 0.
func (s *Scheduler) Measured() int {
	s.mu.Lock()
	known := s.table.prefills != 0 && !s.options.Deterministic
	s.mu.Unlock()
	if !known {
		return 0
	}
	return s.Chunk()
}

// Chunk is how many tokens of prefill one step should hold, so that it takes no longer than Options.Time: from what was
// measured; Options.Tokens where nothing was, or where it must always be the same.
func (s *Scheduler) Chunk() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.options.Deterministic {
		return s.options.Tokens
	}
	return s.table.chunk(s.options.Time, min(leastChunk, s.options.Tokens), s.options.Tokens)
}

// forget is that a session is released.
func (s *Scheduler) forget(id engine.SessionID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.turns, id)
}
