"""A real S3 server on loopback, and a bucket in it."""

import threading

import pytest


@pytest.fixture(scope="module")
def s3_server():
    """Return the URL of an S3 server on loopback."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    app = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def one_at_a_time(environ, start_response):
        # Conditions are checked and then written to; S3 promises that nobody comes between.
        with lock:
            return list(app(environ, start_response))

    class Quiet(WSGIRequestHandler):
        def log_request(self, *_):
            pass

    server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def bucket(s3_server, monkeypatch):
    """Return a fresh file system for the S3 server, which has an empty bucket `data`."""
    import s3fs

    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3fs.S3FileSystem.clear_instance_cache()
    system = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)
    system.call_s3("create_bucket", Bucket="data")
    yield system
    system.rm("data", recursive=True)
    s3fs.S3FileSystem.clear_instance_cache()
