package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/knadh/koanf/parsers/yaml"
	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/providers/file"
	"github.com/knadh/koanf/v2"
	"github.com/spf13/pflag"
)

const (
	envPrefix  = "DGR_"
	configFlag = "config"
)

// source is one layer of values; in a list of them the last that has a key wins.
type source struct {
	values *koanf.Koanf
	spell  func(key string) string // how the key is written there
}

// Load lays flags over environ over the file that --config or DGR_CONFIG names over Default, and validates the whole. All
// violations come back at once, as Faults. environ is as os.Environ returns it; flags are those of AddFlags, parsed.
func Load(flags *pflag.FlagSet, environ []string) (Config, error) {
	var faults Faults
	fromEnv := environment(environ)
	sources := []source{}
	if path := configPath(flags, fromEnv); path != "" {
		fromFile, unknown := configFile(path)
		faults = append(faults, unknown...)
		if fromFile != nil {
			spell := func(key string) string { return fmt.Sprintf("%s in %s", key, filepath.Base(path)) }
			sources = append(sources, source{fromFile, spell})
		}
	}
	sources = append(sources,
		source{fromEnv, envName},
		source{commandLine(flags), func(key string) string { return "--" + flagName(key) }})

	c := Default()
	c.names = map[string]string{}
	for _, o := range options() {
		if fault := c.take(o, sources); fault != "" {
			faults = append(faults, fault)
		}
	}
	var more Faults
	if err := c.Validate(); errors.As(err, &more) {
		// A value that could not be read left the default in its place; what is said about the rest still holds.
		faults = append(faults, more...)
	}
	if len(faults) > 0 {
		return Config{}, faults
	}
	return c, nil
}

// take gives the option the value of the last source that has one, and returns "" or the fault.
func (c *Config) take(o option, sources []source) string {
	for _, s := range slices.Backward(sources) {
		if !s.values.Exists(o.key) {
			continue
		}
		c.names[o.key] = s.spell(o.key)
		raw := scalar(s.values.Get(o.key))
		if err := o.value(c).set(raw); err != nil {
			return fmt.Sprintf("%s is %q, which is not legal; give %s", s.spell(o.key), raw, err)
		}
		return ""
	}
	return ""
}

// scalar is a YAML value as text; a list is its items with commas between.
func scalar(v any) string {
	items, ok := v.([]any)
	if !ok {
		if v == nil {
			return ""
		}
		return fmt.Sprint(v)
	}
	texts := make([]string, len(items))
	for i, item := range items {
		texts[i] = fmt.Sprint(item)
	}
	return strings.Join(texts, ",")
}

// environment is the options that environ sets. Other DGR_ names belong to other programs.
func environment(environ []string) *koanf.Koanf {
	keys := map[string]string{envName(configFlag): configFlag}
	for _, o := range options() {
		keys[envName(o.key)] = o.key
	}
	k := koanf.New(".")
	provider := env.Provider(".", env.Opt{
		Prefix:        envPrefix,
		EnvironFunc:   func() []string { return environ },
		TransformFunc: func(name, v string) (string, any) { return keys[name], v },
	})
	if err := k.Load(provider, nil); err != nil {
		panic(err) // the provider reads the slice above and nothing else
	}
	return k
}

// commandLine is the options that flags set.
func commandLine(flags *pflag.FlagSet) *koanf.Koanf {
	set := map[string]any{}
	for _, o := range options() {
		if f := flags.Lookup(flagName(o.key)); f != nil && f.Changed {
			set[o.key] = f.Value.String()
		}
	}
	k := koanf.New(".")
	if err := k.Load(confmap.Provider(set, "."), nil); err != nil {
		panic(err) // the provider hands on the map above and nothing else
	}
	return k
}

// configPath is the configuration file, or "".
func configPath(flags *pflag.FlagSet, fromEnv *koanf.Koanf) string {
	if f := flags.Lookup(configFlag); f != nil && f.Changed {
		return f.Value.String()
	}
	return fromEnv.String(configFlag)
}

// configFile reads the YAML file. A key that no option has is a fault.
func configFile(path string) (*koanf.Koanf, Faults) {
	k := koanf.New(".")
	if err := k.Load(file.Provider(path), yaml.Parser()); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, Faults{fmt.Sprintf("--config names %s, which does not exist; give the path of a YAML file", path)}
		}
		return nil, Faults{fmt.Sprintf("%s cannot be read as YAML (%s); mend it", path, strings.Join(strings.Fields(err.Error()), " "))}
	}
	var faults Faults
	for key, v := range k.All() {
		if !known(key) && !(emptyGroup(key, v)) {
			faults = append(faults, fmt.Sprintf("%s has the key %s, which is no option; legal are %s", path, key, strings.Join(near(key), ", ")))
		}
	}
	sort.Strings(faults)
	return k, faults
}

func known(key string) bool {
	return slices.ContainsFunc(options(), func(o option) bool { return o.key == key })
}

// emptyGroup says whether the key is the head of others and holds none, as `chain:` alone.
func emptyGroup(key string, v any) bool {
	if m, ok := v.(map[string]any); v != nil && (!ok || len(m) > 0) {
		return false
	}
	return slices.ContainsFunc(options(), func(o option) bool { return strings.HasPrefix(o.key, key+".") })
}

// near is the keys that begin as key does; all if none does.
func near(key string) []string {
	var all, alike []string
	for _, o := range options() {
		all = append(all, o.key)
		if key != "" && o.key[0] == key[0] {
			alike = append(alike, o.key)
		}
	}
	if len(alike) > 0 {
		return alike
	}
	return all
}
