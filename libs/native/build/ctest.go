package build

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/distributed-gguf-runtime/dgr/libs/native/internal/command"
	"github.com/distributed-gguf-runtime/dgr/libs/native/tiny"
)

// ModelsVariable names the environment variable by which the native tests find their models.
const ModelsVariable = "DGR_TINY_MODELS"

// Test builds where needed and runs CTest on random models, with its output in out.
func (b *Builder) Test(ctx context.Context, out io.Writer) error {
	if _, err := b.Build(ctx); err != nil {
		return err
	}
	r, err := b.recipe(ctx)
	if err != nil {
		return err
	}
	t, err := b.tools(ctx, r)
	if err != nil {
		return err
	}
	unlock, err := b.store.Lock(ctx, "build-"+r.base()[:32])
	if err != nil {
		return err
	}
	defer unlock()
	// The compile tree may stand at another shim, or be gone.
	if err := b.compile(ctx, t, r, allTargets); err != nil {
		return err
	}
	models := filepath.Join(b.compileTree(r), "models")
	if err := writeModels(ctx, models); err != nil {
		return fmt.Errorf("write the test models: %w", err)
	}
	started := time.Now()
	cmd := exec.CommandContext(ctx, t.ctest, "--test-dir", b.compileTree(r), "--output-on-failure", "--no-tests=error", "--timeout", "600")
	cmd.Env = append(os.Environ(), ModelsVariable+"="+models)
	cmd.Stdout, cmd.Stderr = out, out
	command.EndGroup(cmd)
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("native tests: %w", context.Cause(ctx))
		}
		return fmt.Errorf("native tests failed: %w", err)
	}
	b.report(fmt.Sprintf("native: tests passed in %s", since(started)))
	return nil
}

// writeModels writes a model of each architecture, with tied and with untied embeddings: ARCH-tied.gguf and
// ARCH-untied.gguf.
func writeModels(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, arch := range tiny.Archs() {
		for name, tied := range map[string]bool{"tied": true, "untied": false} {
			spec, err := tiny.Default(arch)
			if err != nil {
				return err
			}
			spec.Tied = tied
			if err := tiny.Write(ctx, filepath.Join(dir, arch+"-"+name+".gguf"), spec); err != nil {
				return err
			}
		}
	}
	return nil
}
