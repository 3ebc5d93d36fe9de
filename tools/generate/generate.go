// Package generate makes everything in gen from contracts and from libs/engine, and finds out whether what is committed
// is what would be made.
//
// How a table or a fixture is made is the business of its generator; this is only the order and the places.
package generate

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/distributed-gguf-runtime/dgr/tools/pinned"
	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// Mend is the command that makes gen what it should be.
const Mend = "go tool mage gen"

// apis are the HTTP contracts: a file of contracts/openapi and the package it becomes.
var apis = []struct{ spec, pkg string }{
	{"worker-admin.v1.yaml", "workeradmin"},
}

// mocked are the files of libs/engine whose interfaces get mocks.
var mocked = []string{"engine.go"}

// All writes every generated package below out/gen, each emptied first. out is the root, or a folder beside it.
func All(ctx context.Context, w *workspace.Workspace, out string) error {
	if err := pinned.Ensure(ctx, w, pinned.Generators); err != nil {
		return err
	}
	for _, part := range []func(context.Context, *workspace.Workspace, string) error{messages, tables, admin, mocks, fixtures} {
		if err := part(ctx, w, out); err != nil {
			return err
		}
	}
	return nil
}

// messages is gen/workerpb, from the proto files.
func messages(ctx context.Context, w *workspace.Workspace, out string) error {
	return w.Run(ctx, "contracts", nil, pinned.Tool(w, "buf"), "generate", "--output", filepath.Join(out, "contracts"))
}

// tables is gen/tables, from the tables.
func tables(ctx context.Context, w *workspace.Workspace, out string) error {
	return w.Run(ctx, "", nil, "go", "run", "./tools/cmd/gen-tables", "contracts/tables", filepath.Join(out, "gen", "tables"))
}

// fixtures is gen/fixtures, from gen/workerpb and gen/tables.
func fixtures(ctx context.Context, w *workspace.Workspace, out string) error {
	return w.Run(ctx, "", nil, "go", "run", "./tools/cmd/gen-fixtures", filepath.Join(out, "gen", "fixtures"))
}

// admin is the servers and clients of the HTTP contracts.
func admin(ctx context.Context, w *workspace.Workspace, out string) error {
	for _, api := range apis {
		dir, err := emptied(out, api.pkg)
		if err != nil {
			return err
		}
		err = w.Run(ctx, "contracts/openapi", nil, pinned.Tool(w, "oapi-codegen"), "-generate", "types,client,chi-server,strict-server,spec",
			"-package", api.pkg, "-o", filepath.Join(dir, api.pkg+".go"), api.spec)
		if err != nil {
			return err
		}
	}
	return nil
}

// mocks is gen/mocks, from the engine's interfaces.
func mocks(ctx context.Context, w *workspace.Workspace, out string) error {
	dir, err := emptied(out, "mocks")
	if err != nil {
		return err
	}
	for _, file := range mocked {
		err := w.Run(ctx, "libs/engine", nil, pinned.Tool(w, "mockgen"), "-source", file, "-package", "mocks",
			"-self_package", "github.com/distributed-gguf-runtime/dgr/gen/mocks", "-destination", filepath.Join(dir, file))
		if err != nil {
			return err
		}
	}
	return nil
}

// emptied makes the folder of one generated package, with nothing in it.
func emptied(out, pkg string) (string, error) {
	dir := filepath.Join(out, "gen", pkg)
	if err := os.RemoveAll(dir); err != nil {
		return "", fmt.Errorf("empty a generated package: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make a generated package: %w", err)
	}
	return dir, nil
}
