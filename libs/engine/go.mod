module github.com/distributed-gguf-runtime/dgr/libs/engine

go 1.26


