package rpc_test

import "log/slog"

// discard is the log of tests.
var discard = slog.New(slog.DiscardHandler)
