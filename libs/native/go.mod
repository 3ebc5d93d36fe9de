module github.com/distributed-gguf-runtime/dgr/libs/native

go 1.26

require github.com/distributed-gguf-runtime/dgr/libs/engine v0.0.0

replace github.com/distributed-gguf-runtime/dgr/libs/engine => ../../libs/engine
