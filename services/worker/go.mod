module github.com/distributed-gguf-runtime/dgr/services/worker

go 1.26.0

require github.com/distributed-gguf-runtime/dgr/libs/engine v0.0.0

require (
	github.com/dustin/go-humanize v1.1.0
	github.com/google/go-cmp v0.7.0
	github.com/knadh/koanf/parsers/yaml v1.1.1
	github.com/knadh/koanf/providers/confmap v1.0.1
	github.com/knadh/koanf/providers/env/v2 v2.0.2
	github.com/knadh/koanf/providers/file v1.2.1
	github.com/knadh/koanf/v2 v2.4.1
	github.com/spf13/pflag v1.0.9
)

require (
	github.com/fsnotify/fsnotify v1.9.0 // indirect
	github.com/go-viper/mapstructure/v2 v2.4.0 // indirect
	github.com/knadh/koanf/maps v0.1.2 // indirect
	github.com/mitchellh/copystructure v1.2.0 // indirect
	github.com/mitchellh/reflectwalk v1.0.2 // indirect
	github.com/stretchr/testify v1.9.0 // indirect
	go.yaml.in/yaml/v3 v3.0.4 // indirect
	golang.org/x/sys v0.48.0 // indirect
)

replace github.com/distributed-gguf-runtime/dgr/gen => ../../gen

replace github.com/distributed-gguf-runtime/dgr/libs/engine => ../../libs/engine

replace github.com/distributed-gguf-runtime/dgr/libs/native => ../../libs/native

replace github.com/distributed-gguf-runtime/dgr/libs/client => ../../libs/client
