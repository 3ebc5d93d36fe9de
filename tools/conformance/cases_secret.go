package conformance

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
)

// secretCases look for what could be used again in what a worker says and logs.
func secretCases() []Case {
	return []Case{{
		ID: "errors.no-key", Clauses: []string{"ERR-8"}, Run: noKeyIsTold,
		Says: "A session's key stands in nothing that a worker sends, whatever fails, nor in what it logs where that is seen.",
	}}
}

// spellings are how a key could be written.
func spellings(key []byte) []string {
	return []string{
		string(key), hex.EncodeToString(key), strings.ToUpper(hex.EncodeToString(key)), base64.StdEncoding.EncodeToString(key),
		base64.URLEncoding.EncodeToString(key), strings.Trim(fmt.Sprint(key), "[]"), fmt.Sprintf("%q", key), fmt.Sprintf("%+q", key),
		prototext.MarshalOptions{}.Format(&workerpb.Open{SessionKey: key})[len("session_key:"):],
	}
}

// finds says whether a key stands in text: whole, or a good part of it.
func finds(text []byte, key []byte) bool {
	for _, spelt := range spellings(key) {
		if bytes.Contains(text, []byte(spelt)) {
			return true
		}
	}
	return bytes.Contains(text, []byte(hex.EncodeToString(key[:8]))) || bytes.Contains(text, key[:8])
}

// noKeyIsTold makes whatever can go wrong around a key go wrong.
func noKeyIsTold(t *T) {
	key, other := random(32), random(32)
	keep := func(what string, said proto.Message) {
		raw, _ := proto.Marshal(said) // it came from the wire
		for _, k := range [][]byte{key, other} {
			if text := append(raw, prototext.Format(said)...); finds(text, k) {
				t.Errorf("the key stands in %s", what)
			}
		}
	}
	o := t.openFor(0)
	o.SessionKey = key
	refused := func(what string, change func(*workerpb.Open)) {
		bad := proto.CloneOf(o)
		change(bad)
		l := t.link(t.head())
		l.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: bad}})
		keep("the refusal of "+what, l.refusal())
	}
	refused("an unknown field", func(o *workerpb.Open) { stranger(o) })
	refused("a key of 31 bytes", func(o *workerpb.Open) { o.SessionKey = key[:31] })
	refused("another model", func(o *workerpb.Open) { o.Expect.Fingerprint = random(32) })
	d := t.openWith(t.head(), o)
	keep("opened", d.opened)
	refused("another key", func(o *workerpb.Open) { o.SessionKey = other })
	refused("a stale attempt", func(*workerpb.Open) {})
	_, err := t.head().Worker.CancelSession(t.ctx, &workerpb.CancelSessionRequest{SessionId: o.GetSessionId(), SessionKey: other})
	keep("the refusal of CancelSession", t.errorOf(err))
	failed := d.of(d.give(d.step(prefill(t.vocab()))))
	d.done(d.id)
	keep("a failed step", failed.failed)
	d.result(d.put(d.step(prefill(t.ids(2, 1)...))))
	keep("a result", d.of(d.id).result)
	d.send(&workerpb.SessionRequest{Kind: &workerpb.SessionRequest_Open{Open: o}})
	keep("closed", d.over())
	if t.Log == nil {
		return
	}
	log, err := t.Log()
	if err != nil {
		t.Fatalf("read the log: %v", err)
	}
	id := hex.EncodeToString(o.GetSessionId())
	if !bytes.Contains(log, []byte(id)) {
		t.Errorf("the session %s is not in the log, so that is not all of it", id)
	}
	for _, k := range [][]byte{key, other} {
		if finds(log, k) {
			t.Errorf("the key stands in the log")
		}
	}
}
