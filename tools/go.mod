module github.com/distributed-gguf-runtime/dgr/tools

go 1.26.0

require (
	go.yaml.in/yaml/v3 v3.0.5
	google.golang.org/grpc v1.85.0
)

require golang.org/x/sys v0.48.0 // indirect

replace github.com/distributed-gguf-runtime/dgr/gen => ../gen

replace github.com/distributed-gguf-runtime/dgr/libs/engine => ../libs/engine
