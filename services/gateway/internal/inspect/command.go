package inspect

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
)

// Command is `dgr inspect`. A fault is the returned error, one sentence.
func Command() *cobra.Command {
	var asJSON, fingerprint bool
	cmd := &cobra.Command{
		Use:   "inspect MODEL.gguf",
		Short: "Show what a model file is, what its layers weigh and whether it can be cut",
		Long: "Shows what a model file is, what its layers weigh and whether it can be cut among workers. Any part of a split model names the\n" +
			"model. Only the headers are read; --fingerprint reads all weights, once, and keeps what it found beside the file.",
		Example: "  dgr inspect model-Q4_K_M-00001-of-00003.gguf\n  dgr inspect --json --fingerprint model.gguf",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m, err := gguf.Open(args[0])
			if err != nil {
				return err
			}
			r := Describe(m)
			if fingerprint {
				bar := newBar(cmd.ErrOrStderr())
				err := r.Identify(cmd.Context(), m, bar.show)
				bar.finish()
				if err != nil {
					return err
				}
			}
			if asJSON {
				return r.JSON(cmd.OutOrStdout())
			}
			return r.Text(cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&fingerprint, "fingerprint", false, "also print the model's fingerprint; reads the whole model the first time")
	return cmd
}

// bar shows how far the reading is, on a terminal only.
type bar struct{ p *progressbar.ProgressBar }

func newBar(w io.Writer) bar {
	return bar{progressbar.NewOptions64(-1, progressbar.OptionSetWriter(w), progressbar.OptionShowBytes(true),
		progressbar.OptionSetDescription("reading the model"), progressbar.OptionClearOnFinish(),
		progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionSetVisibility(terminal(w)))}
}

func (b bar) show(done, total uint64) {
	b.p.ChangeMax64(int64(total))
	_ = b.p.Set64(int64(done)) // a bar that cannot be drawn is no fault
}

func (b bar) finish() { _ = b.p.Finish() }

// terminal says whether somebody watches w.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
