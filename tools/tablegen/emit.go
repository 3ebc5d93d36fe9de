package tablegen

import (
	"bytes"
	"embed"
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"
)

//go:embed templates/*.tmpl
var templates embed.FS

// The tables that are no lifecycles.
const (
	taxonomyFile  = "errors.v1.yaml"
	revisionsFile = "revisions.v1.yaml"
)

// Generate reads every table of dir and returns the files of package tables, and the reference page of the errors: name
// to content, formatted.
// display is how dir is called in messages.
func Generate(dir, display string) (map[string][]byte, error) {
	read := func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(dir, name)) }
	data, err := read(taxonomyFile)
	if err != nil {
		return nil, fmt.Errorf("read the error taxonomy: %w", err)
	}
	taxonomy, err := ParseTaxonomy(display+"/"+taxonomyFile, data)
	if err != nil {
		return nil, err
	}
	if data, err = read(revisionsFile); err != nil {
		return nil, fmt.Errorf("read the revisions: %w", err)
	}
	revisions, err := ParseRevisions(display+"/"+revisionsFile, data, taxonomy)
	if err != nil {
		return nil, err
	}
	names, err := lifecycleFiles(dir)
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	if out["errors.go"], err = render("errors.tmpl", taxonomy); err != nil {
		return nil, err
	}
	if out["ERRORS.md"], err = render("errors.md.tmpl", taxonomy); err != nil {
		return nil, err
	}
	if out["revisions.go"], err = render("revisions.tmpl", revisions); err != nil {
		return nil, err
	}
	if out["doc.go"], err = render("doc.tmpl", nil); err != nil {
		return nil, err
	}
	for _, name := range names {
		if data, err = read(name); err != nil {
			return nil, fmt.Errorf("read a lifecycle table: %w", err)
		}
		table, err := ParseLifecycle(display+"/"+name, data, taxonomy)
		if err != nil {
			return nil, err
		}
		if want := table.Table + ".v1.yaml"; want != name {
			return nil, fmt.Errorf("%s/%s: its table is %q; the file must be called %s", display, name, table.Table, want)
		}
		if out[table.Table+".go"], err = render("lifecycle.tmpl", table); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// lifecycleFiles lists the lifecycle tables of dir in alphabetical order.
func lifecycleFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list the tables: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".v1.yaml") && e.Name() != taxonomyFile && e.Name() != revisionsFile {
			names = append(names, e.Name())
		}
	}
	sort.Strings(names)
	return names, nil
}

func render(name string, data any) ([]byte, error) {
	funcs := template.FuncMap{
		"goName": goName,
		"grpcName": func(name string) string {
			c, _ := grpcCode(name)
			return "codes." + c.String()
		},
		"quote": func(s string) string { return fmt.Sprintf("%q", s) },
	}
	t, err := template.New(name).Funcs(funcs).ParseFS(templates, "templates/"+name)
	if err != nil {
		return nil, fmt.Errorf("parse template %s: %w", name, err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return nil, fmt.Errorf("run template %s: %w", name, err)
	}
	if strings.HasSuffix(name, ".md.tmpl") {
		return b.Bytes(), nil
	}
	text, err := format.Source(b.Bytes())
	if err != nil {
		return nil, fmt.Errorf("format what template %s gave: %w", name, err)
	}
	return text, nil
}
