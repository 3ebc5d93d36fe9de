package record

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// Targets are the names of the magefile's targets, in lower case, as `patch:verify`.
func Targets(w *workspace.Workspace) ([]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), w.Path("magefile.go"), nil, 0)
	if err != nil {
		return nil, fmt.Errorf("read the targets: %w", err)
	}
	var names []string
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || !f.Name.IsExported() {
			continue
		}
		name := strings.ToLower(f.Name.Name)
		if f.Recv != nil {
			namespace, ok := f.Recv.List[0].Type.(*ast.Ident)
			if !ok {
				continue
			}
			name = strings.ToLower(namespace.Name) + ":" + name
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}
