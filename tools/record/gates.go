package record

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/distributed-gguf-runtime/dgr/tools/task"
	"github.com/distributed-gguf-runtime/dgr/tools/workspace"
)

// RunGates runs the command of every gate of a class, reports to out, and names those that failed.
func RunGates(ctx context.Context, w *workspace.Workspace, p *PRD, class Class, out io.Writer) error {
	l := task.New(out)
	for _, g := range p.Gates {
		name := g.ID + " " + g.Command
		if g.Class != class {
			l.Skip(name, "its class is "+string(g.Class))
			continue
		}
		l.Do(name, func() error {
			env, words := environment(g.Command)
			if len(words) == 0 {
				return fmt.Errorf("the command is empty")
			}
			return w.Run(ctx, "", env, words[0], words[1:]...)
		})
	}
	return l.End()
}

// environment parts a command line into the variables before it and its words.
func environment(line string) (env, words []string) {
	words = strings.Fields(line)
	for len(words) > 0 && strings.Contains(words[0], "=") && !strings.HasPrefix(words[0], "-") {
		env, words = append(env, words[0]), words[1:]
	}
	return env, words
}
