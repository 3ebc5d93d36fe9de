package admin

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"

	"github.com/distributed-gguf-runtime/dgr/gen/workeradmin"
	"github.com/distributed-gguf-runtime/dgr/gen/workerpb"
	"github.com/distributed-gguf-runtime/dgr/libs/client/fault"
)

// strictBody refuses bodies that the description does not allow and that the generated server would let through: too long,
// with unknown fields, or with something behind the object. No body at all is the empty object.
func strictBody(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			next.ServeHTTP(w, r)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyBytes))
		if err != nil {
			fail(w, http.StatusBadRequest, fault.New(workerpb.ErrorCode_ERROR_CODE_MALFORMED, "the body cannot be read or is longer than %d bytes (%w)", bodyBytes, err))
			return
		}
		if len(bytes.TrimSpace(body)) == 0 {
			body = []byte("{}")
		}
		decoder := json.NewDecoder(bytes.NewReader(body))
		decoder.DisallowUnknownFields()
		var request workeradmin.DrainRequest // the only body there is
		if err := decoder.Decode(&request); err != nil {
			fail(w, http.StatusBadRequest, fault.New(workerpb.ErrorCode_ERROR_CODE_MALFORMED, "the body is no DrainRequest (%w)", err))
			return
		}
		if _, err := decoder.Token(); err != io.EOF {
			fail(w, http.StatusBadRequest, fault.New(workerpb.ErrorCode_ERROR_CODE_MALFORMED, "the body goes on behind the DrainRequest"))
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}
