package main

import (
	"errors"
	"testing"
	"time"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/dial"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// A token that is taken out of the file ends the session that was opened with it, without a restart; another one's stays.
func TestATakenTokenEndsItsSession(t *testing.T) {
	f := newFleet(t)
	const leaver, stayer = "token-of-who-leaves", "token-of-who-stays"
	stays := "stays: " + hashOf(stayer) + ": infer, observe\n"
	w := f.worker(0, "0:", "--rights-checked", "100ms", "--token-file", f.file("tokens", stays+"leaves: "+hashOf(leaver)+": infer, observe\n"))
	at := w.ready()
	gone, err := openWith(t, f.as(dial.Files{CA: f.ca.File, Token: f.file("leaver", leaver)}), at)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := openWith(t, f.as(dial.Files{CA: f.ca.File, Token: f.file("stayer", stayer)}), at)
	if err != nil {
		t.Fatal(err)
	}
	f.file("tokens", stays)
	select {
	case <-gone.Done():
	case <-time.After(bound):
		t.Fatal("the session goes on without a token")
	}
	if err := gone.Err(); !errors.Is(err, fault.Code(workerpb.ErrorCode_ERROR_CODE_UNAUTHENTICATED)) {
		t.Errorf("the session ended with %v", err)
	}
	if err := kept.Prefill(t.Context(), prompt); err != nil {
		t.Errorf("the other session: %v", err)
	}
	quiet(t, []*launched{w}, leaver, stayer)
}
