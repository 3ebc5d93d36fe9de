package engine

// ChatRequest is a conversation and what is wanted of the answer. JSON is as OpenAI's chat API has it.
type ChatRequest struct {
	Messages            string // a JSON array of at least one message; contents are text
	Tools               string // a JSON array; empty: none
	ToolChoice          string // auto, none, required or the name of a tool; empty: auto
	JSONSchema          string // of the answer; empty: none
	TemplateArguments   string // further variables of the template, a JSON object; empty: none
	AddGenerationPrompt bool   // the prompt ends where the assistant begins
}

// ChatPrompt is a conversation as the model reads it.
type ChatPrompt struct {
	Prompt  string    // without the BOS and EOS that Tokens have
	Tokens  []TokenID // to be evaluated
	Grammar *Grammar  // for Sampling.Grammar; nil: none
	Stops   []string  // texts that end the answer
	Parser  []byte    // opaque, for ParseChat
}
