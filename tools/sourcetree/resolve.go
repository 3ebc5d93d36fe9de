package sourcetree

import (
	"errors"
	"go/ast"
	"go/types"
)

// Names says what the names in a tree mean, as far as that can be known without reading any imported package.
type Names struct{ info types.Info }

// Resolve finds out what names mean, package by package. Faults are no matter here: the compiler reports them.
func (t *Tree) Resolve() *Names {
	n := &Names{types.Info{Uses: map[*ast.Ident]types.Object{}, Defs: map[*ast.Ident]types.Object{}}}
	type pkg struct{ dir, name string }
	groups := map[pkg][]*ast.File{}
	for _, f := range t.Files {
		p := pkg{f.Dir(), f.Syntax.Name.Name}
		groups[p] = append(groups[p], f.Syntax)
	}
	config := types.Config{Error: func(error) {}, Importer: nothing{}, FakeImportC: true}
	for p, files := range groups {
		_, _ = config.Check(Prefix+p.dir, t.Fset, files, &n.info) // the faults were given to Error
	}
	return n
}

// nothing imports no package; go/types then makes up an empty one of the right name.
type nothing struct{}

func (nothing) Import(string) (*types.Package, error) { return nil, errors.New("not read") }

// PackageVar is the package variable of the tree's own package that a name means, nil when it means anything else.
func (n *Names) PackageVar(id *ast.Ident) *types.Var {
	v, ok := n.info.Uses[id].(*types.Var)
	if !ok || v.Pkg() == nil || v.Parent() != v.Pkg().Scope() {
		return nil
	}
	return v
}

// Imported is the path of the package that a name means, empty when it means anything else.
func (n *Names) Imported(id *ast.Ident) string {
	if p, ok := n.info.Uses[id].(*types.PkgName); ok {
		return p.Imported().Path()
	}
	return ""
}

// Builtin says whether a name means a builtin function.
func (n *Names) Builtin(id *ast.Ident) bool {
	_, ok := n.info.Uses[id].(*types.Builtin)
	return ok
}
