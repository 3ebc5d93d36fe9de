package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"

	"github.com/distributed-gguf-runtime/dgr/services/worker/internal/shard"
)

// announcement is the line that tells a parent where a ready worker is.
type announcement struct {
	WorkerID    string `json:"worker_id"`
	Address     string `json:"address"` // HOST:PORT of gRPC
	Admin       string `json:"admin"`   // HOST:PORT of HTTP
	Layers      string `json:"layers"`  // FIRST:END
	Fingerprint string `json:"fingerprint"`
	NLayer      uint32 `json:"n_layer"`
}

// announce writes the line.
func announce(w io.Writer, workerID, address, admin string, l *shard.Loaded) error {
	line, err := json.Marshal(announcement{
		WorkerID: workerID, Address: address, Admin: admin, NLayer: l.Info.NLayer,
		Layers: fmt.Sprintf("%d:%d", l.Info.Layers.First, l.Info.Layers.End), Fingerprint: hex.EncodeToString(l.Fingerprint[:]),
	})
	if err != nil {
		return err
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("nobody takes the announcement on standard output (%w); leave --announce out, or read it", err)
	}
	return nil
}
