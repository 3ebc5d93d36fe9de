package config

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// AddFlags adds every option to flags. Values are not read here but in Load, so that all faults can be told at once.
func AddFlags(flags *pflag.FlagSet) {
	flags.VarP(&rawFlag{kind: "PATH"}, configFlag, "c", "YAML file with any of these options; flags and environment go before it")
	defaults := Default()
	for _, o := range options() {
		f := &rawFlag{kind: o.kind}
		flags.Var(f, flagName(o.key), o.usage)
		added := flags.Lookup(flagName(o.key))
		added.DefValue = o.value(&defaults).String()
		if o.kind == "" {
			added.NoOptDefVal = "true"
		}
	}
}

// rawFlag keeps what was written, unread.
type rawFlag struct{ kind, written string }

func (f *rawFlag) String() string     { return f.written }
func (f *rawFlag) Set(s string) error { f.written = s; return nil }
func (f *rawFlag) Type() string       { return f.kind }

// Usage is the options by group, as the help shows them: flag, environment, default.
func Usage() string {
	var b strings.Builder
	defaults := Default()
	group := ""
	for _, o := range options() {
		if o.group != group {
			group = o.group
			fmt.Fprintf(&b, "\n%s:\n", group)
		}
		name := "--" + flagName(o.key)
		if o.kind != "" {
			name += " " + o.kind
		}
		fmt.Fprintf(&b, "  %-30s %s", name, o.usage)
		if d := o.value(&defaults).String(); d != "" && d != "false" {
			fmt.Fprintf(&b, " (default %s)", d)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
