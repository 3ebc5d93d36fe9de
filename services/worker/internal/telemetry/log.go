// Package telemetry is what a worker tells people and collectors about itself: the logger and the metrics.
//
// Rooms that have something to report declare a small interface of their own; Metrics fits them. Nothing here decides
// anything, and no other room's types come in but the tables' and the engine's.
package telemetry

import (
	"io"
	"log/slog"
)

// secrets are attributes whose values never reach a log, wherever they stand.
var secrets = map[string]bool{"session_key": true, "authorization": true, "password": true, "secret": true}

// NewLogger writes lines of at least level to w, as `text` or `json`.
func NewLogger(w io.Writer, level slog.Leveler, format string) *slog.Logger {
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if secrets[a.Key] {
			return slog.String(a.Key, "[redacted]")
		}
		return a
	}}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
