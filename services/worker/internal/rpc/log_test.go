package rpc_test

import (
	"log/slog"
	"time"
)

// discard is the log of tests.
var discard = slog.New(slog.DiscardHandler)

// waitABit lets others run while a test asks again and again for something that nobody tells.
func waitABit() { <-time.After(time.Millisecond) }
