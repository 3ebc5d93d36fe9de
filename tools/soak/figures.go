package soak

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"text/tabwriter"
)

// figure is one thing that must come back.
type figure struct {
	name    string
	metric  string
	unit    float64 // that it is shown in
	slack   float64 // that it may be more than before
	factor  float64 // and, beside it, this part of what it was before
	atRest  bool    // it is 0 when nothing is under way
	defects bool    // it must be 0 always
}

// watched are the figures of a worker. A connection to a next hop may be kept for a while: a few goroutines and a file handle.
// What a Go process gives back to the system, it gives back late.
var watched = []figure{
	{name: "goroutines", metric: "go_goroutines", unit: 1, slack: 16},
	{name: "file handles", metric: "process_open_fds", unit: 1, slack: 4},
	{name: "RSS, MiB", metric: "process_resident_memory_bytes", unit: 1 << 20, slack: 48 << 20, factor: 0.25},
	{name: "buffered bytes", metric: "dgr_worker_buffered_bytes", unit: 1, atRest: true},
	{name: "sessions", metric: "dgr_worker_sessions", unit: 1, atRest: true},
	{name: "slots", metric: "dgr_worker_engine_sessions", unit: 1, atRest: true},
	{name: "reserved tokens", metric: "dgr_worker_engine_cache_reserved_tokens", unit: 1, atRest: true},
	{name: "impossible transitions", metric: "dgr_worker_impossible_transitions_total", unit: 1, defects: true},
}

// figures are what was seen of one worker, by figure; metrics with labels are added up.
type figures []float64

// read asks an admin port for its metrics.
func read(ctx context.Context, admin string) (figures, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("read the metrics of %s: %w", admin, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the metrics of %s are answered with %s", admin, answer.Status)
	}
	return parse(answer.Body)
}

// parse reads the text format of Prometheus.
func parse(text io.Reader) (figures, error) {
	found := make(figures, len(watched))
	seen := make([]bool, len(watched))
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		name, _, _ = strings.Cut(name, "{")
		for i, w := range watched {
			if name != w.metric {
				continue
			}
			n, err := strconv.ParseFloat(value[strings.LastIndexByte(value, ' ')+1:], 64)
			if err != nil {
				return nil, fmt.Errorf("the metric %s is %q: %w", name, value, err)
			}
			found[i] += n
			seen[i] = true
		}
	}
	for i, w := range watched {
		if !seen[i] && !w.defects { // a counter with labels is there once it has counted
			return nil, fmt.Errorf("the metric %s is missing", w.metric)
		}
	}
	return found, lines.Err()
}

// rest says whether nothing is under way on any worker.
func rest(all []figures) bool {
	for _, f := range all {
		for i, w := range watched {
			if w.atRest && f[i] != 0 {
				return false
			}
		}
	}
	return true
}

// most is the greater of both, figure by figure.
func most(a, b []figures) []figures {
	if a == nil {
		return b
	}
	for n := range a {
		for i := range a[n] {
			a[n][i] = max(a[n][i], b[n][i])
		}
	}
	return a
}

// compare says what did not come back.
func compare(before, after []figures) error {
	var faults []error
	for n := range before {
		for i, w := range watched {
			limit := before[n][i] + w.slack + w.factor*before[n][i]
			if w.atRest || w.defects {
				limit = 0
			}
			if after[n][i] > limit {
				faults = append(faults, fmt.Errorf("%s of %s: %.0f before, %.0f after, %.0f are allowed", w.name, names[n], before[n][i]/w.unit, after[n][i]/w.unit, limit/w.unit))
			}
		}
	}
	return errors.Join(faults...)
}

// enough says whether there was the load that was asked for: nine in ten of the sessions at once.
func enough(peak []figures, o Options) error {
	sum := 0.0
	for i, w := range watched {
		if w.name == "sessions" && len(peak) == len(names) {
			sum = peak[0][i] + peak[1][i] // the third worker has those of the second
		}
	}
	if want := 0.9 * float64(o.Sessions); sum < want {
		return fmt.Errorf("at most %.0f sessions were open at once, %.0f are due; the machine is too busy for this soak", sum, want)
	}
	return nil
}

// table prints what was before, at most, and after.
func (s *soak) table(before, peak, after []figures) {
	t := tabwriter.NewWriter(s.options.Out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "\tBEFORE\tPEAK\tAFTER\t")
	for n, name := range names {
		fmt.Fprintf(t, "%s\t\t\t\t\n", name)
		for i, w := range watched {
			fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%.0f\t\n", w.name, before[n][i]/w.unit, peak[n][i]/w.unit, after[n][i]/w.unit)
		}
	}
	_ = t.Flush() // to the terminal
	fmt.Fprintf(s.options.Out, "sessions ended: %v\n", s.ends)
}
