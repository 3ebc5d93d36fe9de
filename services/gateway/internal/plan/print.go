package plan

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
)

// address gives every worker an address and the command that starts it, and names the route.
func (p *Plan) address(addresses []string, o Options) {
	hosts := map[string]int{}
	var route []string
	for i := range p.Workers {
		w := &p.Workers[i]
		w.Address = net.JoinHostPort("HOST-"+strconv.Itoa(w.Machine), strconv.Itoa(workerPort))
		if len(addresses) > 0 {
			w.Address = addresses[w.Machine-1]
		}
		route = append(route, w.Address)
		host, _, _ := net.SplitHostPort(w.Address) // checked or made above
		hosts[host]++
	}
	p.Route = strings.Join(route, ",")
	for i := range p.Workers {
		p.Workers[i].Command = p.command(i, o, hosts)
	}
}

// command is what starts worker i; hosts counts the workers of each host.
func (p *Plan) command(i int, o Options, hosts map[string]int) []string {
	w := p.Workers[i]
	args := []string{"dgr-worker", "--model", p.Model, "--layers", fmt.Sprintf("%d:%d", w.First, w.End),
		"--context", fmt.Sprint(o.Context), "--sessions", fmt.Sprint(o.Sessions), "--listen", w.Address}
	add := func(when bool, more ...string) {
		if when {
			args = append(args, more...)
		}
	}
	host, _, _ := net.SplitHostPort(w.Address)
	if i+1 < len(p.Workers) {
		args = append(args, "--chain-allow", p.Workers[i+1].Address)
	}
	add(hosts[host] > 1, "--admin", "127.0.0.1:0")
	add(!loopback(host), "--insecure")
	add(o.CacheType != "f16", "--cache-type", o.CacheType)
	add(o.MicroBatch != workerBatch, "--micro-batch", fmt.Sprint(o.MicroBatch))
	add(o.FlashAttention, "--flash-attention")
	return args
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// JSON writes the plan for programs.
func (p *Plan) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(p)
}

// Text writes the plan for people.
func (p *Plan) Text(w io.Writer) error {
	fmt.Fprintf(w, "%s: %s of %s on %s, %s of %s tokens, cache in %s\n\n", p.Model, count(int(p.Layers), "layer"), p.Architecture,
		count(len(p.Workers), "worker"), count(int(p.Sessions), "session"), humanize.Comma(int64(p.Context)), p.CacheType)
	if err := p.table(w); err != nil {
		return err
	}
	if len(p.Unused) > 0 {
		fmt.Fprintf(w, "\nnot needed: %s\n", machines(p.Unused))
	}
	fmt.Fprint(w, "\nstart the workers, each on its machine, with the model file there")
	if strings.Contains(p.Route, "HOST-") {
		fmt.Fprint(w, " and HOST-n replaced by the name under which the others reach it")
	}
	fmt.Fprint(w, ":\n\n")
	open := false
	for _, k := range p.Workers {
		fmt.Fprintf(w, "  %s\n", shell(k.Command))
		open = open || slices.Contains(k.Command, "--insecure")
	}
	if open {
		fmt.Fprint(w, "\n(--insecure: whoever reaches the port may use the worker; do this in a network that is yours alone)\n")
	}
	_, err := fmt.Fprintf(w, "\nthen ask them:\n\n  dgr run --route %s -p \"Once upon a time\"\n", p.Route)
	return err
}

func (p *Plan) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "machine\tlayers\tweights\tcache\toverhead\tused\tmemory\tfree\t\n")
	for _, k := range p.Workers {
		fmt.Fprintf(t, "%d\t%d:%d\t%s\t%s\t%s\t%s\t%s\t%s\t\n", k.Machine, k.First, k.End, humanize.IBytes(k.Weights), humanize.IBytes(k.Cache),
			humanize.IBytes(k.Overhead), humanize.IBytes(k.Used), humanize.IBytes(k.Memory), humanize.IBytes(k.Free))
	}
	return t.Flush()
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func machines(list []int) string {
	s := make([]string, len(list))
	for i, n := range list {
		s[i] = strconv.Itoa(n)
	}
	if len(s) == 1 {
		return "machine " + s[0]
	}
	return "machines " + strings.Join(s, ", ")
}

// shell writes a command so that a POSIX shell reads back the same words.
func shell(words []string) string {
	quoted := make([]string, len(words))
	for i, s := range words {
		quoted[i] = s
		if s == "" || strings.ContainsFunc(s, unsafe) {
			quoted[i] = "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// unsafe says whether a character may mean something to a shell.
func unsafe(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:,=+@%", r))
}
