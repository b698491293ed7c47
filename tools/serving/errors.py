"""Errors as clients see them: OpenAI's error object, with an HTTP status."""

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

KINDS = {429: "requests", 500: "server_error", 503: "server_error"}  # OpenAI's types, by status


class ApiError(HTTPException):
    """A request that cannot be answered. `param` names the field that is wrong."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None):
        super().__init__(status, message, {"Retry-After": "1"} if status in (429, 503) else None)
        self.param, self.code = param, code

    def body(self) -> dict:
        kind = KINDS.get(self.status_code, "invalid_request_error")
        return {"error": {"message": self.detail, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status_code, self.headers)


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    match error:
        case ApiError():
            return error.response()
        case RequestValidationError():
            return bad_field(error).response()
        case HTTPException():  # of FastAPI: an unknown path, for example
            message = f"{request.method} {request.url.path[:100]}: {error.detail}"
            return ApiError(message, status=error.status_code).response()
    return ApiError("the server made a mistake; its log says more", status=500, code="internal").response()


def bad_field(error: RequestValidationError) -> ApiError:
    """Name the first field that is wrong, and what each alternative of its type expects."""
    errors = error.errors()
    place = errors[0]["loc"][1:]
    if errors[0]["type"] == "json_invalid":
        return ApiError(f"the body is not JSON: {errors[0]['ctx']['error']}", code="invalid_json")
    expected = dict.fromkeys(x["msg"] for x in errors if x["loc"][1:2] == place[:1])
    path = ".".join(map(str, place))[:100].encode(errors="replace").decode()  # half a character is no text
    param = path.split(".")[0] or None
    return ApiError(f"{path or 'the body'}: {' or '.join(expected)}", param, code="invalid_value")
