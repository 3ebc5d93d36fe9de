package verify

import (
	"context"
	"os"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/tools/task"
	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// Offline runs the tests of every module again, none from the cache, with the ways out closed: no module registry, every
// proxy at a port where nobody listens, no accelerator in sight and no key in the environment.
func Offline(ctx context.Context, w *workspace.Workspace) error {
	env := []string{
		"GOPROXY=off", "GOFLAGS=-mod=readonly", "CGO_ENABLED=0", "CUDA_VISIBLE_DEVICES=", "HIP_VISIBLE_DEVICES=", "ZE_AFFINITY_MASK=",
		"HTTP_PROXY=" + nowhere, "HTTPS_PROXY=" + nowhere, "ALL_PROXY=" + nowhere, "http_proxy=" + nowhere, "https_proxy=" + nowhere,
	}
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); secret(name) {
			env = append(env, name+"=")
		}
	}
	l := task.New(os.Stdout)
	for _, m := range w.Modules {
		l.Do("offline: tests of "+m.Dir, func() error { return goTest(ctx, w, m.Dir, env, "-count=1") })
	}
	return l.End()
}

// nowhere is a proxy that refuses every connection.
const nowhere = "http://127.0.0.1:9"

// secret says whether a variable looks like a key to somebody's service.
func secret(name string) bool {
	name = strings.ToUpper(name)
	for _, end := range []string{"_API_KEY", "_TOKEN", "_SECRET", "_ACCESS_KEY", "_PASSWORD"} {
		if strings.HasSuffix(name, end) {
			return true
		}
	}
	return false
}
