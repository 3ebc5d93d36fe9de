package main

import (
	"fmt"
	"io"
	"math"

	"github.com/spf13/cobra"

	"github.com/distributed-gguf-runtime/dgr/libs/native/handbook"
	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/golden"
	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/nn"
	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/weights"
)

func newContinueCommand(prompts []string) *cobra.Command {
	var model string
	cmd := &cobra.Command{
		Use:   "continue [prompt…]",
		Short: "Show how a trained model continues prompts (default the README's ten), without any engine",
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := findHandbook()
			if model == "" && err != nil {
				return err
			}
			if model == "" {
				model = p.model
			}
			if len(args) > 0 {
				prompts = args
			}
			_, err = continueAll(cmd.OutOrStdout(), model, prompts)
			return err
		},
	}
	cmd.Flags().StringVar(&model, "model", "", "file of a model (default the committed one)")
	return cmd
}

// continueAll reads the model's file, as an engine would, and continues each prompt.
func continueAll(w io.Writer, path string, prompts []string) ([]handbook.Prompt, error) {
	m, v, err := weights.Read(path)
	if err != nil {
		return nil, err
	}
	run := nn.NewRun(m)
	var list []handbook.Prompt
	for _, prompt := range prompts {
		p, err := golden.Greedy(m, run, v, prompt)
		if err != nil {
			return nil, err
		}
		p.Margin = math.Floor(p.Margin*100) / 100
		list = append(list, p)
		fmt.Fprintf(w, "[%d tokens, margin %.2f] %s%s\n\n", p.Tokens, p.Margin, p.Prompt, p.Continuation)
	}
	return list, nil
}
