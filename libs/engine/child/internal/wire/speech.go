package wire

import (
	"bytes"
	"encoding/gob"
	"fmt"
)

// Speech encodes one kind of message for one listener, which must hear every one: types are told once.
type Speech struct {
	buffer  bytes.Buffer
	encoder *gob.Encoder
}

// NewSpeech begins one.
func NewSpeech() *Speech {
	s := &Speech{}
	s.encoder = gob.NewEncoder(&s.buffer)
	return s
}

// Encode returns the message, which is good until the next call.
func (s *Speech) Encode(message any) ([]byte, error) {
	s.buffer.Reset()
	if err := s.encoder.Encode(message); err != nil {
		return nil, fmt.Errorf("encode a batch: %w", err)
	}
	return s.buffer.Bytes(), nil
}

// Hearing decodes what a Speech encoded.
type Hearing struct {
	reader  bytes.Reader
	decoder *gob.Decoder
}

// NewHearing begins one.
func NewHearing() *Hearing {
	h := &Hearing{}
	h.decoder = gob.NewDecoder(&h.reader)
	return h
}

// Decode reads the next message, the whole of data.
func (h *Hearing) Decode(data []byte, message any) error {
	h.reader.Reset(data)
	if err := h.decoder.Decode(message); err != nil {
		return fmt.Errorf("decode a batch: %w", err)
	}
	return nil
}
