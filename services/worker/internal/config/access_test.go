package config

import (
	"strings"
	"testing"
)

// secure are the arguments of a port that others may reach.
func secure(more ...string) []string {
	return append([]string{"--model", "m.gguf", "--listen", "10.0.0.1:7711", "--admin", "10.0.0.1:7712"}, more...)
}

// A port that others can reach needs TLS and authentication, both, or --insecure.
func TestOthersMustProveWhoTheyAre(t *testing.T) {
	const tls = "--tls-cert c --tls-key k "
	for args, want := range map[string]int{
		"":           2,
		"--insecure": 0,
		tls:          2,
		tls + "--tls-client-ca ca --tls-allow a=infer":           0,
		tls + "--tls-client-ca ca --tls-allow-file f":            0,
		tls + "--token-file f":                                   0,
		tls + "--authz-address 127.0.0.1:1":                      0,
		tls + "--authz-address unix:/run/a":                      0,
		tls + "--authz-address 10.0.0.2:1 --authz-ca ca":         0,
		tls + "--authz-address 10.0.0.2:1":                       1,
		"--authz-address 127.0.0.1:1":                            2,
		"--authz-address 10.0.0.2:1":                             3,
		"--token-file f":                                         3,
		tls + "--tls-client-ca ca":                               3,
		tls + "--tls-client-ca ca --token-file f":                1,
		"--tls-cert c --token-file f":                            3,
		"--tls-key k":                                            3,
		tls + "--tls-allow a=infer --token-file f":               1,
		tls + "--tls-allow-file l --token-file f":                1,
		tls + "--token-file f --authz-ca ca":                     1,
		tls + "--token-file f --chain-cert c":                    2,
		tls + "--token-file f --chain-key c":                     1,
		tls + "--token-file f --chain-token-file c":              1,
		tls + "--token-file f --chain-allow h:1=w":               1,
		tls + "--token-file f --chain-allow h:1=w --chain-ca ca": 0,
	} {
		_, err := load(t, secure(strings.Fields(args)...), nil, "")
		if want == 0 {
			if err != nil {
				t.Errorf("%q: %v", args, err)
			}
			continue
		}
		faults(t, err, make([]string, want)...)
	}
}

func TestAccessFromAFile(t *testing.T) {
	c, err := load(t, []string{"--model", "m.gguf"}, nil, "tls: {cert: c, key: k, client_ca: ca, allow: ['a.example=infer+text', 'spiffe://x=chain']}\n"+
		"authz: {address: '127.0.0.1:1', keep: 5s}\nchain: {ca: ca, allow: ['h:1=spiffe://y']}\n")
	if err != nil {
		t.Fatal(err)
	}
	if a := c.Access; len(a.Allow) != 2 || a.Authority == "" || a.AuthorityKeep.Seconds() != 5 || !a.Secured() || a.ByCertificateOnly() {
		t.Errorf("%+v", a)
	}
}
