//go:build unix

package main_test

import (
	"encoding/json"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestTextIsTheSameOverAnyNumberOfWorkers(t *testing.T) {
	const model = "fake:layers=6"
	var texts []string
	for _, parts := range [][]string{{"0:6"}, {"0:2", "2:"}, {"0:1", "1:4", "4:6"}, {"0:1", "1:2", "2:3", "3:4", "4:6"}} {
		_, route := startRoute(t, model, parts...)
		// 81 tokens of prompt are two chunks.
		prompt := strings.Repeat("A shard is a range. ", 4)
		o := run(t, "", "run", "--route", route, "-p", prompt, "-n", "40").good(t)
		texts = append(texts, o.stdout)
		says(t, o.stderr, "prefill 81 tokens", "decode 39 tokens", "tokens/s")
		sampled := run(t, "", "run", "--route", route, "-p", prompt, "-n", "40", "--temp", "1", "--seed", "7").good(t)
		texts[len(texts)-1] += sampled.stdout
		says(t, sampled.stderr, "seed 7")
	}
	if greedy, _, _ := strings.Cut(texts[0], "\n"); len(greedy) != 40 || strings.Trim(greedy, " abcdefghijklmnopqrstuvwxyz") != "" {
		t.Errorf("the greedy text is %q", greedy)
	}
	for _, text := range texts[1:] {
		if text != texts[0] {
			t.Errorf("the text is %q over more workers and %q over one", text, texts[0])
		}
	}
}

func TestRunReportsAsJSON(t *testing.T) {
	workers, route := startRoute(t, "fake:layers=4", "0:1", "1:4")
	text := run(t, "", "run", "--route", route, "-p", "Once", "-n", "9").good(t).stdout
	var report struct {
		Text         string
		Finish       string
		PromptTokens int `json:"prompt_tokens"`
		Tokens       int
		Decode       struct {
			Rate float64 `json:"tokens_per_second"`
		}
		Hops []struct {
			WorkerID string `json:"worker_id"`
			Address  string
			Layers   string
			Compute  float64 `json:"compute_ms_per_token"`
		}
	}
	o := run(t, "", "run", "--route", route, "-p", "Once", "-n", "9", "--json").good(t)
	if err := json.Unmarshal([]byte(o.stdout), &report); err != nil {
		t.Fatalf("%v in %q", err, o.stdout)
	}
	if report.Text+"\n" != text || report.Finish != "LENGTH" || report.PromptTokens != 5 || report.Tokens != 9 || report.Decode.Rate <= 0 {
		t.Errorf("report %+v, text %q", report, text)
	}
	if len(report.Hops) != 2 || report.Hops[1].Address != workers[1].Address || report.Hops[1].Layers != "1:4" || report.Hops[0].Compute <= 0 {
		t.Errorf("hops %+v", report.Hops)
	}
}

func TestWhatEndsARun(t *testing.T) {
	_, route := startRoute(t, "fake:layers=2,end=30", "0:1", "1:2")
	o := run(t, "A shard is\n", "run", "--route", route, "-p", "-", "-n", "100").good(t)
	says(t, o.stderr, "ended by the model", "prefill 11 tokens")
	text := strings.TrimSuffix(o.stdout, "\n")
	if len(text) != 30-11 {
		t.Errorf("the model ends at 30 tokens of which 11 are prompt; the text has %d characters: %q", len(text), text)
	}
	stop := text[7:10]
	o = run(t, "", "run", "--route", route, "-p", "A shard is", "-n", "100", "--stop", stop).good(t)
	if want := text[:strings.Index(text, stop)] + "\n"; o.stdout != want {
		t.Errorf("up to %q the text is %q, want %q", stop, o.stdout, want)
	}
	says(t, o.stderr, "ended by --stop")
}

func TestKilledWorkerIsNamedWithinTwoSeconds(t *testing.T) {
	const model = "fake:layers=6,script=step slow 5ms"
	for index, part := range []string{"0:2", "2:4", "4:6"} {
		t.Run("hop_"+strconv.Itoa(index), func(t *testing.T) {
			workers, route := startRoute(t, model, "0:2", "2:4", "4:6")
			whole := run(t, "", "run", "--route", route, "-p", "Once", "-n", "12").good(t).stdout
			p := begin(t, "--route", route, "-p", "Once", "-n", "1000")
			before := time.Now()
			workers[index].signal(syscall.SIGKILL)
			code := p.wait()
			if took := time.Since(before); took > 2*time.Second {
				t.Errorf("it took %v", took)
			}
			rest, _ := io.ReadAll(p.out)
			o := outcome{string(rest), p.stderr(), code}
			says(t, o.sentence(t, 1), "DOWNSTREAM_LOST", "hop "+strconv.Itoa(index), workers[index].Address, "layers "+part)

			// The others are well: with a new worker in its place the route answers as before.
			again := startWorker(t, model, part)
			route = strings.Replace(route, workers[index].Address, again.Address, 1)
			if text := run(t, "", "run", "--route", route, "-p", "Once", "-n", "12").good(t).stdout; text != whole {
				t.Errorf("after a restart the text is %q, before it was %q", text, whole)
			}
		})
	}
}

func TestFrozenWorkerIsNamedByTheTokenTimeout(t *testing.T) {
	const model = "fake:layers=6,script=step slow 5ms"
	for index, part := range []string{"0:2", "2:4", "4:6"} {
		t.Run("hop_"+strconv.Itoa(index), func(t *testing.T) {
			workers, route := startRoute(t, model, "0:2", "2:4", "4:6")
			p := begin(t, "--route", route, "-p", "Once", "-n", "1000", "--token-timeout", "300ms")
			before := time.Now()
			workers[index].signal(syscall.SIGSTOP)
			code := p.wait()
			if took := time.Since(before); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
			rest, _ := io.ReadAll(p.out)
			says(t, outcome{string(rest), p.stderr(), code}.sentence(t, 1), "hop "+strconv.Itoa(index), workers[index].Address, "layers "+part)
		})
	}
}

func TestInterruptedRunLeavesNoSession(t *testing.T) {
	w := startWorker(t, "fake:layers=2,script=step slow 5ms", "0:2", "--sessions", "1")
	p := begin(t, "--route", w.Address, "-p", "Once", "-n", "1000")

	// The only place is taken: a second run is told so at once, by whom, and what to do.
	o := run(t, "", "run", "--route", w.Address, "-p", "Once", "-n", "5", "--json")
	var object struct {
		Error struct {
			Code, Message, Recovery string
			Hop                     struct{ Address string }
		}
	}
	if err := json.Unmarshal([]byte(o.stdout), &object); err != nil || o.code != 1 || o.stderr != "" {
		t.Errorf("exit code %d, %q, %q, %v", o.code, o.stdout, o.stderr, err)
	}
	if e := object.Error; e.Code != "NO_CAPACITY" || e.Recovery != "RETRY_OTHER" || e.Hop.Address != w.Address || e.Message == "" {
		t.Errorf("the error is %+v", e)
	}

	p.signal(os.Interrupt)
	if code := p.wait(); code != 1 {
		t.Errorf("exit code %d", code)
	}
	says(t, p.stderr(), "interrupted")
	run(t, "", "run", "--route", w.Address, "-p", "Once", "-n", "5").good(t)
}

func TestTimeoutEndsTheRun(t *testing.T) {
	w := startWorker(t, "fake:layers=2,script=step slow 20ms", "0:2")
	o := run(t, "", "run", "--route", w.Address, "-p", "Once", "-n", "1000", "--timeout", "700ms")
	if o.code != 1 || !strings.Contains(o.stderr, "DEADLINE_EXCEEDED") {
		t.Errorf("exit code %d, %q", o.code, o.stderr)
	}
}

func TestRoutesThatDoNotJoin(t *testing.T) {
	head, tail := startWorker(t, "fake:layers=4", "0:2"), startWorker(t, "fake:layers=4", "2:4")
	wide, last := startWorker(t, "fake:layers=4", "1:4"), startWorker(t, "fake:layers=4", "3:4")
	other := startWorker(t, "fake:layers=4,seed=2", "2:4")
	for name, c := range map[string]struct {
		route []*worker
		says  []string
	}{
		"gap":        {[]*worker{head, last}, []string{"ROUTE_INVALID", "2:3", head.Address, last.Address}},
		"overlap":    {[]*worker{head, wide}, []string{"ROUTE_INVALID", "1:2", head.Address, wide.Address}},
		"no head":    {[]*worker{tail}, []string{"ROUTE_INVALID", "0:2", tail.Address}},
		"no tail":    {[]*worker{head}, []string{"ROUTE_INVALID", "2:4", head.Address}},
		"two models": {[]*worker{head, other}, []string{"SHARD_MISMATCH", head.Address, other.Address}},
	} {
		t.Run(name, func(t *testing.T) {
			var addresses []string
			for _, w := range c.route {
				addresses = append(addresses, w.Address)
			}
			o := run(t, "", "run", "--route", strings.Join(addresses, ","), "-p", "x")
			says(t, o.sentence(t, 1), c.says...)
			if o.stdout != "" {
				t.Errorf("text came: %q", o.stdout)
			}
		})
	}
	// The order of the addresses does not matter.
	run(t, "", "run", "--route", tail.Address+","+head.Address, "-p", "x", "-n", "3").good(t)
}

func TestWorkersThatCannotBeUsed(t *testing.T) {
	w := startWorker(t, "fake:layers=4", "0:2")
	w.signal(syscall.SIGKILL)
	w.wait()
	o := run(t, "", "run", "--route", w.Address, "-p", "x")
	says(t, o.sentence(t, 1), "DOWNSTREAM_UNREACHABLE", w.Address, "connection refused")

	// A worker that may dial nobody cannot be the head of a longer route.
	alone := startWorker(t, "fake:layers=4", "0:2", "--chain-allow", "192.0.2.1:7711")
	tail := startWorker(t, "fake:layers=4", "2:4")
	o = run(t, "", "run", "--route", alone.Address+","+tail.Address, "-p", "x")
	says(t, o.sentence(t, 1), "ROUTE_REFUSED", tail.Address)

	o = run(t, "", "run", "--route", alone.Address+","+alone.Address, "-p", "x")
	says(t, o.sentence(t, 1), "ROUTE_INVALID", alone.Address, "twice")

	// What listens on the admin port is no worker's gRPC.
	o = run(t, "", "run", "--route", alone.Admin, "-p", "x")
	says(t, o.sentence(t, 1), "DOWNSTREAM_UNREACHABLE", alone.Admin, "no gRPC")

	o = run(t, "", "run", "--route", "127.0.0.1", "-p", "x")
	says(t, o.sentence(t, 1), "127.0.0.1", "HOST:PORT")

	o = run(t, "", "run", "--route", tail.Address+","+alone.Address, "-p", "x", "-n", "4000")
	says(t, o.sentence(t, 1), "CONTEXT_OVERFLOW", "4000", "2048")
}

func TestFaultsOfTheCommandLine(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		says []string
	}{
		"no command there": {[]string{"walk"}, []string{"walk", "run", "up"}},
		"unknown flag":     {[]string{"run", "--speed", "9"}, []string{"--speed", "dgr run --help"}},
		"bad number":       {[]string{"run", "-n", "many"}, []string{`"many"`, "--tokens", "dgr run --help"}},
		"no route":         {[]string{"run", "-p", "x"}, []string{"--route"}},
		"no prompt":        {[]string{"run", "--route", "a:1"}, []string{"-p"}},
		"several at once":  {[]string{"run", "--temp", "-1", "--top-p", "2"}, []string{"--temp", "--top-p", "--route", "-p"}},
		"argument":         {[]string{"run", "stray"}, []string{"stray"}},
		"empty stdin":      {[]string{"run", "--route", "a:1", "-p", "-"}, []string{"standard input"}},
		"up, no model":     {[]string{"up"}, []string{"--model"}},
		"up, twice":        {[]string{"up", "--model", "fake", "--layers", "0:4", "--workers", "2"}, []string{"--layers", "--workers"}},
		"up, bad layers":   {[]string{"up", "--model", "fake", "--layers", "0-4"}, []string{"0-4", "FIRST:END"}},
		"up, gap":          {[]string{"up", "--model", "fake", "--layers", "0:1,2:4"}, []string{"1:2"}},
		"up, overlap":      {[]string{"up", "--model", "fake", "--layers", "0:3,2:4"}, []string{"2:3"}},
		"up, too many":     {[]string{"up", "--model", "fake:layers=2", "--workers", "3"}, []string{"2 layers", "3 workers"}},
		"up, bad fake":     {[]string{"up", "--model", "fake:depth=2"}, []string{"depth"}},
		"demo, no tokens":  {[]string{"demo", "-n", "0"}, []string{"-n"}},
		"inspect nothing":  {[]string{"inspect"}, []string{"dgr inspect --help"}},
	} {
		t.Run(name, func(t *testing.T) {
			says(t, run(t, "", c.args...).sentence(t, 2), c.says...)
			var object struct {
				Error struct{ Code, Message string }
			}
			o := run(t, "", append(c.args, "--json")...)
			if err := json.Unmarshal([]byte(o.stdout), &object); err != nil || o.code != 2 || object.Error.Code != "USAGE" || object.Error.Message == "" {
				t.Errorf("with --json: exit code %d, %q, %v", o.code, o.stdout, err)
			}
		})
	}
	for _, args := range [][]string{{}, {"--help"}, {"run", "--help"}, {"up", "--help"}, {"demo", "--help"}, {"inspect", "--help"}, {"plan", "--help"}, {"split", "--help"}} {
		o := run(t, "", args...).good(t)
		says(t, o.stdout, "Examples:", "dgr ")
	}
	says(t, run(t, "", "--version").good(t).stdout, "dgr 0.")
}
