//go:build llama && cgo

package llama

import (
	"strings"
	"time"
)

// differs are the renderings that are not Jinja2's, each with the reason. One that is equal after all fails the test.
var differs = map[string]string{
	// llama.cpp takes what Jinja2, or the library transformers, does not
	"CohereForAI-c4ai-command-r-plus-tool_use tools":  "a parameter without description is an empty one",
	"CohereForAI-c4ai-command-r-plus-tool_use called": "a parameter without description is an empty one",
	"Kimi-K2-Instruct called":                         "lists can be appended to",
	"Kimi-K2-Thinking called":                         "lists can be appended to",
	"fireworks-ai-llama-3-firefunction-v2 plain":      functions,
	"fireworks-ai-llama-3-firefunction-v2 turns":      functions,
	"fireworks-ai-llama-3-firefunction-v2 quiet":      functions,
	"fireworks-ai-llama-3-firefunction-v2 tools":      functions,
	"fireworks-ai-llama-3-firefunction-v2 called":     functions,
	"llama-cpp-deepseek-r1 tools":                     "a generator can be written as JSON",
	"llama-cpp-deepseek-r1 called":                    "a generator can be written as JSON",
	"meetkai-functionary-medium-v3.2 called":          "arguments stay a text where the template joins them to one",
	// llama.cpp mends what a template cannot
	"google-gemma-2-2b-it turns":               "a system message goes into the user's where the template refuses it",
	"google-gemma-4-31B-it-interleaved called": "an older template's answers of tools are joined to the turn that called them",
	"meetkai-functionary-medium-v3.1 tools":    "JSON is not escaped for HTML",
	"meetkai-functionary-medium-v3.1 called":   "JSON is not escaped for HTML",
}

const functions = "variables that nobody gave are undefined, and take no error"

// undated writes today's dates as their formats in braces, as Jinja2 was made to.
func undated(prompt string) string {
	now := time.Now()
	for format, layout := range map[string]string{
		"%Y-%m-%d": "2006-01-02", "%d %B %Y": "02 January 2006", "%B %d, %Y": "January 02, 2006", "%d %b %Y": "02 Jan 2006",
	} {
		prompt = strings.ReplaceAll(prompt, now.Format(layout), "{"+format+"}")
	}
	return prompt
}
