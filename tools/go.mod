module github.com/distributed-gguf-runtime/dgr/tools

go 1.26


