package houserules

import (
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/tools/sourcetree"
)

// House is what a rule looks at.
type House struct {
	tree  *sourcetree.Tree
	names *sourcetree.Names
}

// NewHouse prepares a tree for the rules.
func NewHouse(t *sourcetree.Tree) *House { return &House{t, t.Resolve()} }

// funcs is a check of each function declaration; what returns the fault, empty when there is none.
func funcs(what func(*ast.FuncDecl) string) func(*House, *sourcetree.File) []Finding {
	return func(h *House, f *sourcetree.File) []Finding {
		var found []Finding
		for _, d := range f.Syntax.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				if fault := what(fn); fault != "" {
					found = append(found, Finding{h.tree.At(fn), fault})
				}
			}
		}
		return found
	}
}

// uses finds functions that are named as `context.Background` (the last element of the import path), and builtins.
func (h *House) uses(f *sourcetree.File, names ...string) []Finding {
	var found []Finding
	ast.Inspect(f.Syntax, func(n ast.Node) bool {
		switch e := n.(type) {
		case *ast.SelectorExpr:
			x, ok := e.X.(*ast.Ident)
			if !ok || h.names.Imported(x) == "" {
				return true
			}
			if name := path.Base(h.names.Imported(x)) + "." + e.Sel.Name; slices.Contains(names, name) {
				found = append(found, Finding{h.tree.At(e), name})
			}
		case *ast.Ident:
			if h.names.Builtin(e) && slices.Contains(names, e.Name) {
				found = append(found, Finding{h.tree.At(e), e.Name})
			}
		}
		return true
	})
	return found
}

// methods finds calls of methods by name and arguments.
func (h *House) methods(f *sourcetree.File, bad func(name string, c *ast.CallExpr) bool) []Finding {
	var found []Finding
	ast.Inspect(f.Syntax, func(n ast.Node) bool {
		if c, ok := n.(*ast.CallExpr); ok {
			if s, ok := c.Fun.(*ast.SelectorExpr); ok && bad(s.Sel.Name, c) {
				found = append(found, Finding{h.tree.At(c), s.Sel.Name})
			}
		}
		return true
	})
	return found
}

// mutableGlobals finds package variables without a value, and assignments to package variables.
func mutableGlobals(h *House, f *sourcetree.File) []Finding {
	if f.Test() {
		return nil
	}
	found := h.emptyGlobals(f)
	changed := func(e ast.Expr) {
		if id := root(e); id != nil && h.names.PackageVar(id) != nil {
			found = append(found, Finding{h.tree.At(e), "package variable " + id.Name + " is changed"})
		}
	}
	ast.Inspect(f.Syntax, func(n ast.Node) bool {
		switch s := n.(type) {
		case *ast.AssignStmt:
			for _, e := range s.Lhs {
				changed(e)
			}
		case *ast.IncDecStmt:
			changed(s.X)
		}
		return true
	})
	return found
}

// emptyGlobals finds package variables that begin without a value; those that the compiler fills are none.
func (h *House) emptyGlobals(f *sourcetree.File) []Finding {
	var found []Finding
	for _, d := range f.Syntax.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.VAR {
			continue
		}
		for _, s := range g.Specs {
			if v := s.(*ast.ValueSpec); len(v.Values) == 0 && !embedded(g.Doc) && !embedded(v.Doc) {
				found = append(found, Finding{h.tree.At(v), "var " + v.Names[0].Name + " has no value, so somebody sets it"})
			}
		}
	}
	return found
}

// embedded says whether the compiler fills the variable from files.
func embedded(doc *ast.CommentGroup) bool {
	return doc != nil && slices.ContainsFunc(doc.List, func(c *ast.Comment) bool { return strings.HasPrefix(c.Text, "//go:embed ") })
}

// root is the variable at the left end of an expression that is assigned to, nil when there is none.
func root(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		default:
			return nil
		}
	}
}

// rootless finds contexts that are made out of nothing, save those that begin an owner's life.
func (h *House) rootless(f *sourcetree.File) []Finding {
	lives := map[token.Pos]bool{}
	ast.Inspect(f.Syntax, func(n ast.Node) bool {
		s, ok := n.(*ast.AssignStmt)
		if !ok || len(s.Lhs) != 2 || len(s.Rhs) != 1 || !field(s.Lhs[0]) || !field(s.Lhs[1]) {
			return true
		}
		made, ok := s.Rhs[0].(*ast.CallExpr)
		if !ok || len(made.Args) != 1 || !h.is(made.Fun, "context", "WithCancel", "WithCancelCause") {
			return true
		}
		if from, ok := made.Args[0].(*ast.CallExpr); ok && h.is(from.Fun, "context", "Background") {
			lives[from.Pos()] = true
		}
		return true
	})
	var found []Finding
	ast.Inspect(f.Syntax, func(n ast.Node) bool {
		if e, ok := n.(*ast.SelectorExpr); ok && !lives[e.Pos()] && h.is(e, "context", "Background", "TODO") {
			found = append(found, Finding{h.tree.At(e), "context." + e.Sel.Name})
		}
		return true
	})
	return found
}

// is says whether an expression names one of the things of an imported package.
func (h *House) is(e ast.Expr, imported string, names ...string) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok || !slices.Contains(names, s.Sel.Name) {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && h.names.Imported(x) == imported
}

// field says whether an expression is a field of something.
func field(e ast.Expr) bool {
	_, ok := e.(*ast.SelectorExpr)
	return ok
}
