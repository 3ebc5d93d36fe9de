//go:build unix

package child_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/child"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/fake"
)

// scriptVariable makes this test program a child with the fake engine, which has the script that it holds. Two words of
// ours may stand before the script: `abort` and `hang` strike at the first step, `abort-load` at the load.
const scriptVariable = "DGR_TEST_CHILD"

func TestMain(m *testing.M) {
	if script, isChild := os.LookupEnv(scriptVariable); isChild {
		if err := child.Serve(context.Background(), factoryOf(script)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// options start this program as a child.
func options(script string) child.Options {
	return child.Options{Command: func() *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), scriptVariable+"="+script, "GORACE=atexit_sleep_ms=0")
		return cmd
	}}
}

func factoryOf(script string) engine.Factory {
	word, rest, _ := strings.Cut(script, "|")
	if rest == "" && word != "abort" && word != "hang" && word != "abort-load" {
		word, rest = "", script
	}
	rules, err := fake.ParseScript(rest)
	if err != nil {
		panic(err)
	}
	o := fake.Default()
	o.Script = rules
	return func() (engine.ShardEngine, engine.TextEngine, error) {
		e, text, err := fake.Factory(o)()
		return native{e, word}, text, err
	}
}

// native does what only native code can do to a process.
type native struct {
	engine.ShardEngine
	fate string
}

func (n native) Load(ctx context.Context, r engine.LoadRequest, progress func(engine.LoadProgress)) (engine.ShardInfo, error) {
	if n.fate == "abort-load" {
		abort()
	}
	return n.ShardEngine.Load(ctx, r, progress)
}

func (n native) Step(ctx context.Context, batch []engine.Step) ([]engine.StepResult, error) {
	switch n.fate {
	case "abort":
		abort()
	case "hang":
		select {}
	}
	return n.ShardEngine.Step(ctx, batch)
}

func abort() {
	fmt.Fprintln(os.Stderr, "ggml.c:1234: GGML_ASSERT(n > 0) failed")
	_ = syscall.Kill(os.Getpid(), syscall.SIGABRT)
	select {}
}
