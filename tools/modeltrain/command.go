package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/distributed-gguf-runtime/dgr/libs/native/handbook"
	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/recipe"
	"github.com/distributed-gguf-runtime/dgr/tools/modeltrain/internal/weights"
)

// modelName is what the file's header calls the model.
const modelName = "DGR handbook"

// job is one run of the command.
type job struct {
	recipe  recipe.Recipe
	prompts []string

	text    string // file, "": the embedded handbook
	out     string // file, "": a place in the user's cache
	replace bool
}

func newCommand(r recipe.Recipe, prompts []string) *cobra.Command {
	j := &job{recipe: r, prompts: prompts}
	cmd := &cobra.Command{
		Use:           "modeltrain",
		Short:         "Train the embedded model from the handbook's text",
		Long:          "Train the embedded model from the handbook's text. It takes about ten minutes of one idle core.",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return j.run(cmd) },
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	f := cmd.Flags()
	f.Uint64Var(&j.recipe.Seed, "seed", r.Seed, "of the first weights and of all that is drawn")
	f.IntVar(&j.recipe.Steps, "steps", r.Steps, "steps of the optimiser")
	f.StringVar(&j.text, "text", "", "file to train on (default the embedded handbook)")
	f.StringVar(&j.out, "out", "", "file to write (default dgr/modeltrain/handbook.gguf in the user's cache)")
	f.BoolVar(&j.replace, "replace", false, "replace the committed model, its pinned hash and its prompts.json")
	cmd.AddCommand(newContinueCommand(prompts))
	return cmd
}

func (j *job) run(cmd *cobra.Command) error {
	if err := j.recipe.Validate(); err != nil {
		return usageError{err}
	}
	p, err := j.places(cmd)
	if err != nil {
		return err
	}
	text, err := j.read()
	if err != nil {
		return err
	}
	say := cmd.ErrOrStderr()
	fmt.Fprintf(say, "training on %d bytes of text, %d steps, seed %d\n", len(text), j.recipe.Steps, j.recipe.Seed)
	model, vocab, err := j.recipe.Train(cmd.Context(), text, func(p recipe.Progress) {
		if p.Step%25 == 0 || p.Step == 1 || p.Step == p.Steps {
			fmt.Fprintf(say, "step %d of %d, loss %.3f, %.0f tokens/s, %s left\n", p.Step, p.Steps, p.Loss,
				float64(p.Tokens)/p.Elapsed.Seconds(), p.Left().Round(time.Second))
		}
	})
	if err != nil {
		return err
	}
	if err := weights.Write(cmd.Context(), p.model, modelName, model, vocab); err != nil {
		return err
	}
	list, err := continueAll(cmd.OutOrStdout(), p.model, j.prompts)
	if err != nil {
		return err
	}
	hash, err := hashOf(p.model)
	if err != nil {
		return err
	}
	if j.replace {
		if err := p.pin(hash, list); err != nil {
			return err
		}
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s\nsha256 %s\n%s\n", p.model, hash, verdict(hash, j.replace))
	return nil
}

// verdict compares a hash with the pin that this program was built with.
func verdict(hash string, replaced bool) string {
	switch {
	case hash == handbook.SHA256:
		return "the same bytes as the committed model"
	case replaced:
		return "the committed model is replaced; it was " + handbook.SHA256
	}
	return "differs from the committed model, " + handbook.SHA256 +
		": expected on another kind of machine or with another recipe"
}

// places finds where to write, and refuses what would harm the committed model before any time is spent.
func (j *job) places(cmd *cobra.Command) (places, error) {
	repo, repoErr := findHandbook()
	if j.replace {
		for _, flag := range []string{"out", "text", "seed", "steps"} {
			if cmd.Flags().Changed(flag) {
				return places{}, usageError{fmt.Errorf("--replace writes what the defaults make; leave out --%s", flag)}
			}
		}
		return repo, repoErr
	}
	if j.out == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return places{}, fmt.Errorf("find a place for the model: %w; give --out", err)
		}
		j.out = filepath.Join(cache, "dgr", "modeltrain", "handbook.gguf")
	}
	if repoErr == nil && sameFile(j.out, repo.model) {
		return places{}, usageError{fmt.Errorf("%s is the committed model; give --replace to replace it and its pin, or another --out", j.out)}
	}
	if err := os.MkdirAll(filepath.Dir(j.out), 0o755); err != nil {
		return places{}, fmt.Errorf("make the directory of --out: %w", err)
	}
	return places{model: j.out}, nil
}

func (j *job) read() (string, error) {
	if j.text == "" {
		return handbook.Text(), nil
	}
	text, err := os.ReadFile(j.text)
	if err != nil {
		return "", fmt.Errorf("read the text: %w", err)
	}
	return string(text), nil
}

// sameFile says whether both paths name one file, whether or not it exists.
func sameFile(a, b string) bool {
	absA, errA := filepath.Abs(a)
	absB, errB := filepath.Abs(b)
	if errA == nil && errB == nil && absA == absB {
		return true
	}
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errors.Join(errA, errB) == nil && os.SameFile(infoA, infoB)
}

func hashOf(path string) (string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("hash the model: %w", err)
	}
	h := sha256.Sum256(content)
	return hex.EncodeToString(h[:]), nil
}
