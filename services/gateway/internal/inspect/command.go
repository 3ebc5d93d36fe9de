package inspect

import (
	"github.com/spf13/cobra"

	"github.com/distributed-gguf-runtime/dgr/libs/native/gguf"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/progress"
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
				bar := progress.New(cmd.ErrOrStderr(), "reading the model")
				err := r.Identify(cmd.Context(), m, bar.Show)
				bar.Finish()
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
