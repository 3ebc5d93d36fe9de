package main

import (
	"log/slog"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/distributed-gguf-runtime/dgr/gen/tables"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/shard"
)

// patience is how long a load runs before it shows how far it is.
const (
	patience  = 2 * time.Second
	showEvery = 250 * time.Millisecond // of looks at it
	logEvery  = 5 * time.Second        // of log lines within one phase
)

var phaseNames = map[engine.LoadPhase]string{
	engine.LoadValidating: "checking the header", engine.LoadVerifying: "verifying weights", engine.LoadReading: "reading weights",
	engine.LoadProbing: "first step",
}

// loading shows a load: a bar on a terminal, else a line now and then.
type loading struct {
	log      *slog.Logger
	terminal *os.File // nil: none
	began    time.Time
	phase    engine.LoadPhase
	said     time.Time
	bar      *progressbar.ProgressBar
}

func newLoading(log *slog.Logger, stderr *os.File) *loading {
	l := &loading{log: log, began: time.Now()}
	if term.IsTerminal(int(stderr.Fd())) {
		l.terminal = stderr
	}
	return l
}

// show is called every now and then with the present status.
func (l *loading) show(s shard.Status) {
	if s.State != tables.ShardLoading || s.Progress.Phase == engine.LoadReady || time.Since(l.began) < patience {
		return
	}
	p := s.Progress
	if l.terminal != nil {
		l.draw(p)
		return
	}
	if p.Phase != l.phase || time.Since(l.said) >= logEvery {
		l.phase, l.said = p.Phase, time.Now()
		l.log.Info("loading", "phase", phaseNames[p.Phase], "done", p.Done, "total", p.Total)
	}
}

func (l *loading) draw(p engine.LoadProgress) {
	if p.Phase != l.phase {
		l.clear()
		l.phase = p.Phase
		total := int64(p.Total)
		if total == 0 {
			total = -1 // a spinner
		}
		l.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(l.terminal), progressbar.OptionShowBytes(total > 0),
			progressbar.OptionUseIECUnits(true), progressbar.OptionSetDescription(phaseNames[p.Phase]), progressbar.OptionClearOnFinish(),
			progressbar.OptionSetWidth(30),
			progressbar.OptionSetRenderBlankState(true))
	}
	_ = l.bar.Set64(int64(p.Done)) // a terminal that went away is no fault of the load
}

// clear takes the bar off the screen.
func (l *loading) clear() {
	if l.bar != nil {
		_ = l.bar.Clear() // as above
		l.bar = nil
	}
}
