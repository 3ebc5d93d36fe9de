package run

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/services/gateway/internal/fail"
)

// maxPrompt bounds what is read from standard input, bytes.
const maxPrompt = 16 << 20

// Command is `dgr run`. The text goes to standard output and nothing else does; speeds go to standard error.
func Command() *cobra.Command {
	o := Default()
	var files dial.Files
	var seed uint64
	var timeout time.Duration
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "run --route HOST:PORT,… -p PROMPT",
		Short: "Continue a prompt over running workers",
		Long: `Continues a prompt over running workers and streams the text to standard output. Together the workers must hold every
layer of one model exactly once; their order does not matter. Each worker must be allowed to dial the next one by the
address that is given here (dgr-worker --chain-allow).

Workers that listen with TLS are dialled with --tls-ca; without it --tls-cert or --token-file trust the CAs of this system.

Without --temp the most probable token is taken each time, so that the same prompt gives the same text.`,
		Example: `  dgr run --route 127.0.0.1:7711,127.0.0.1:7721 -p "Once upon a time" -n 64
  echo "A shard is" | dgr run --route 127.0.0.1:7711 -p -
  dgr run --route 10.0.0.1:7711,10.0.0.2:7711 -p "Tell me" --temp 0.8 --top-p 0.95 --seed 7 --stop "The end"
  dgr run --route 10.0.0.1:7711 -p "Once" --tls-ca fleet.pem --tls-cert me.pem --tls-key me.key
  dgr run --route 127.0.0.1:7711 -p "Once" --json | jq .decode.tokens_per_second`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("seed") {
				o.Seed = &seed
			}
			if err := o.check(); err != nil {
				return err
			}
			if err := files.Secure(&o.Dial, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))); err != nil {
				return fail.Usagef("%w", err)
			}
			if err := o.readPrompt(cmd.InOrStdin()); err != nil {
				return err
			}
			ctx := cmd.Context()
			if timeout > 0 {
				bounded, stop := context.WithTimeout(ctx, timeout)
				defer stop()
				ctx = bounded
			}
			return Print(ctx, o, asJSON, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.Route, "route", nil, "workers, HOST:PORT apart by commas")
	f.StringVarP(&o.Prompt, "prompt", "p", "", "text to continue; - reads it from standard input, without a last line end")
	f.Uint32VarP(&o.MaxTokens, "tokens", "n", o.MaxTokens, "most tokens to generate")
	f.Float32Var(&o.Temperature, "temp", o.Temperature, "temperature; 0 takes the most probable token")
	f.Uint32Var(&o.TopK, "top-k", o.TopK, "draw from the k most probable tokens; 0 is off")
	f.Float32Var(&o.TopP, "top-p", o.TopP, "draw from the most probable tokens that make up this share; 1 is off")
	f.Float32Var(&o.MinP, "min-p", o.MinP, "draw from tokens at least this share as probable as the first; 0 is off")
	f.Float32Var(&o.Typical, "typical", o.Typical, "draw from the tokens of the most typical surprise that make up this share; 1 is off")
	f.Float32Var(&o.Repeat, "repeat-penalty", o.Repeat, "make tokens of the last 64 less probable; 1 is off")
	f.Uint64Var(&seed, "seed", 0, "seed of the draws; drawn and reported if absent")
	f.StringArrayVar(&o.Stop, "stop", nil, "end the answer before this text; may be repeated")
	f.BoolVar(&o.Special, "special", false, "read special tokens written in the prompt")
	f.Uint32Var(&o.Context, "context", 0, "tokens to reserve on every worker; 0 is what the prompt and -n need")
	f.DurationVar(&timeout, "timeout", 0, "end the whole run after this time; 0 is never")
	f.DurationVar(&o.TokenTimeout, "token-timeout", o.TokenTimeout, "longest time between two tokens")
	f.StringVar(&files.CA, "tls-ca", "", "CA of the workers, PEM; they are dialled over TLS then")
	f.StringVar(&files.Cert, "tls-cert", "", "own certificate for workers that ask for one, PEM")
	f.StringVar(&files.Key, "tls-key", "", "its key, PEM")
	f.StringVar(&files.Token, "token-file", "", "file with the bearer token that workers ask for; sent over TLS only")
	f.BoolVar(&asJSON, "json", false, "print one JSON object at the end instead of the text, also for an error")
	return cmd
}

// check finds what is wrong with the flags, all of it.
func (o *Options) check() error {
	var faults []string
	check := func(ok bool, text string) {
		if !ok {
			faults = append(faults, text)
		}
	}
	check(len(o.Route) > 0, "--route names no worker; give HOST:PORT,… as dgr up prints it")
	check(o.Prompt != "", "there is no prompt; give one with -p, or -p - to read it")
	check(o.MaxTokens >= 1, "-n must be 1 or more")
	check(o.Temperature >= 0, "--temp must be 0 or more")
	check(o.TopP > 0 && o.TopP <= 1, "--top-p must be more than 0 and at most 1")
	check(o.MinP >= 0 && o.MinP <= 1, "--min-p must be 0 to 1")
	check(o.Typical > 0 && o.Typical <= 1, "--typical must be more than 0 and at most 1")
	check(o.Repeat > 0, "--repeat-penalty must be more than 0")
	check(o.TokenTimeout > 0, "--token-timeout must be more than 0")
	for _, stop := range o.Stop {
		check(stop != "", "--stop is empty; give a text")
	}
	if len(faults) > 0 {
		return fail.Usagef("%s", strings.Join(faults, "; "))
	}
	return nil
}

func (o *Options) readPrompt(stdin io.Reader) error {
	if o.Prompt != "-" {
		return nil
	}
	data, err := io.ReadAll(io.LimitReader(stdin, maxPrompt+1))
	if err != nil {
		return fmt.Errorf("the prompt cannot be read from standard input: %w", err)
	}
	if len(data) > maxPrompt {
		return fail.Usagef("the prompt on standard input is larger than %d MiB; give less", maxPrompt>>20)
	}
	o.Prompt = strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	if o.Prompt == "" {
		return fail.Usagef("standard input holds no prompt; write one to it")
	}
	return nil
}

// Print generates and prints: text with speeds beside it, or JSON.
func Print(ctx context.Context, o Options, asJSON bool, stdout, stderr io.Writer) error {
	if asJSON {
		report, err := Generate(ctx, o, func(string) error { return nil })
		if err != nil {
			return err
		}
		return json.NewEncoder(stdout).Encode(report)
	}
	begun := false
	report, err := Generate(ctx, o, func(text string) error {
		begun = true
		_, err := io.WriteString(stdout, text)
		return err
	})
	if begun {
		fmt.Fprintln(stdout)
	}
	if report != nil {
		fmt.Fprintln(stderr, report.Speeds())
	}
	return err
}

// Speeds is one line for a person.
func (r *Report) Speeds() string {
	line := fmt.Sprintf("prefill %s, decode %s, %s", r.Prefill, r.Decode, r.ending())
	if r.Seed != nil {
		line += fmt.Sprintf(", seed %d", *r.Seed)
	}
	return line
}

func (r *Report) ending() string {
	return map[string]string{
		"LENGTH": "ended at -n", "END_OF_GENERATION": "ended by the model", "STOP_STRING": "ended by --stop", "CANCELLED": "interrupted",
	}[r.Finish]
}

// String is as `5 tokens in 0.01 s (500.0 tokens/s)`.
func (s Speed) String() string {
	text := fmt.Sprintf("%d tokens in %.2f s", s.Tokens, s.Seconds)
	if s.Rate > 0 {
		text += fmt.Sprintf(" (%.1f tokens/s)", s.Rate)
	}
	return text
}
