// Package progress shows a person how far long work on bytes is.
package progress

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Bar is a bar on a terminal; where nobody watches it shows nothing.
type Bar struct{ bar *progressbar.ProgressBar }

// New makes a bar that says what is done.
func New(w io.Writer, what string) Bar {
	file, ok := w.(*os.File)
	return Bar{progressbar.NewOptions64(-1, progressbar.OptionSetWriter(w), progressbar.OptionShowBytes(true),
		progressbar.OptionSetDescription(what), progressbar.OptionClearOnFinish(),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetVisibility(ok && term.IsTerminal(int(file.Fd()))))}
}

// Show moves the bar to done bytes of total.
func (b Bar) Show(done, total uint64) {
	b.bar.ChangeMax64(int64(total))
	_ = b.bar.Set64(int64(done)) // a bar that cannot be drawn is no fault
}

// Say changes what the bar says is done.
func (b Bar) Say(what string) { b.bar.Describe(what) }

// Finish takes the bar away.
func (b Bar) Finish() { _ = b.bar.Finish() }
