package enginecases

import (
	"reflect"
	"testing"

	"github.com/golang/mock/gomock"

	"github.com/distributed-gguf-runtime/dgr/gen/mocks"
	"github.com/distributed-gguf-runtime/dgr/libs/engine"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/enginetest"
	"github.com/distributed-gguf-runtime/dgr/libs/engine/fake"
)

// The mocks that others test with pass everything on as the engine behind them would have taken it.
func TestDecoratedEngine(t *testing.T) {
	end := fake.EndOfText
	scripted := func(text string) engine.Factory {
		return func() (engine.ShardEngine, engine.TextEngine, error) {
			o := fake.Default()
			var err error
			if o.Script, err = fake.ParseScript(text); err != nil {
				return nil, nil, err
			}
			return fake.Factory(o)()
		}
	}
	enginetest.Run(t, enginetest.Target{
		Factory:         fake.Factory(fake.Default()),
		Request:         engine.LoadRequest{ContextLimit: 64, Sessions: 4, BatchTokens: 48, MicroBatch: 16, Threads: 1, CacheType: "f32"},
		EndOfGeneration: &end,
		Without: map[enginetest.Ability]string{
			enginetest.BadFiles: "the fake behind the mock reads no files",
		},
		Slow: scripted("step slow 5ms"), Lost: scripted("step 1 lost"), NaN: scripted("step 1 nan"),
	}.With(func(f engine.Factory) engine.Factory { return decorated(t, f) }))
}

// decorated puts a mock before every engine of a factory.
func decorated(t *testing.T, f engine.Factory) engine.Factory {
	return func() (engine.ShardEngine, engine.TextEngine, error) {
		e, text, err := f()
		if err != nil {
			return nil, nil, err
		}
		control := gomock.NewController(t)
		shard, words := mocks.NewMockShardEngine(control), mocks.NewMockTextEngine(control)
		delegate(shard.EXPECT(), e)
		delegate(words.EXPECT(), text)
		return shard, words, nil
	}
}

// delegate makes a mock pass on every method that its recorder knows.
func delegate(recorder, to any) {
	r, behind := reflect.ValueOf(recorder), reflect.ValueOf(to)
	for i := range r.NumMethod() {
		anything := make([]reflect.Value, r.Method(i).Type().NumIn())
		for j := range anything {
			anything[j] = reflect.ValueOf(gomock.Any())
		}
		call := r.Method(i).Call(anything)[0].Interface().(*gomock.Call)
		call.DoAndReturn(behind.MethodByName(r.Type().Method(i).Name).Interface()).AnyTimes()
	}
}
